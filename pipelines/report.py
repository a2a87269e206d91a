"""Write the report of one or several run folders: tables, figures and one HTML page.

uv run python pipelines/report.py runs/sweep_noise-...
uv run python pipelines/report.py runs/first runs/second --out runs/both
uv run python pipelines/report.py s3://bucket/runs/sweep_noise --out report
uv run python pipelines/report.py runs/sweep_noise-... --upload
uv run python pipelines/report.py --experiment ray_atr --out runs/from_mlflow
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("report")

"""Compare who is believed to be a true pair: method x kind of noise x noise ratio x seed, each method tuned first.

    uv run python pipelines/sweep_correspondence.py --tune 8 --seeds 0 1 2 --out runs/correspondence
    uv run python pipelines/sweep_correspondence.py --resume runs/correspondence

Ends with the reality check's table and picture in the run folder's report.
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep", "correspondence")

"""Import a data set into Parquet shards with captions in any number of languages, or check one.

uv run python pipelines/prepare_data.py esc50 --source data/ESC-50-master --out data/esc50
uv run python pipelines/prepare_data.py audiocaps --source data/audiocaps --out data/ac --captions jpn=test.csv jpn=val.csv
uv run python pipelines/prepare_data.py check data/esc50
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("prepare")

"""Evaluate saved retrievers on a data set's split, in every language, and compare two.

uv run python pipelines/evaluate.py --checkpoint runs/train-...
uv run python pipelines/evaluate.py --checkpoint runs/sweep_noise-.../trials/TRIAL --data data/esc50 --split val
uv run python pipelines/evaluate.py --checkpoint runs/a0 runs/a1 --baseline runs/b0 runs/b1 --out runs/a_against_b
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("evaluate")

"""Evaluate saved retrievers on a data set's split, in every language, and compare two.

    uv run python pipelines/evaluate.py --checkpoint runs/train-...
    uv run python pipelines/evaluate.py --checkpoint runs/sweep_noise-.../trials/TRIAL --data data/esc50 --split val
    uv run python pipelines/evaluate.py --checkpoint runs/a0 runs/a1 --baseline runs/b0 runs/b1 --out runs/a_against_b

A checkpoint is a trial's folder, a run of one trial, or a folder that `Retriever.save_pretrained` wrote; several are seeds of
one experiment. Folders may be URLs (`s3://...`). The results are a JSON, a Markdown and an HTML file, and every query's scores,
in one new folder.
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("evaluate")

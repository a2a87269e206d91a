"""Find the wrong pairs of a data set, listen and decide on a page, and write the data set that the decisions make.

uv run python pipelines/audit.py data/esc50 --checkpoint runs/pretrained --out audits/esc50
uv run python pipelines/audit.py audits/esc50 --apply decisions.json --out data/esc50_audited
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("audit")

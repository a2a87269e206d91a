"""Compare language schemes and pair losses: scheme x pair loss x noise ratio x seed.

uv run python pipelines/sweep_objectives.py
uv run python pipelines/sweep_objectives.py --schemes english kcl --pairs contrastive partial_learning_to_match
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep", "objectives")

"""Compare training objectives under noisy correspondence: objective x noise ratio x seed.

uv run python pipelines/sweep_noise.py
uv run python pipelines/sweep_noise.py --resume runs/sweep_noise-...
uv run python pipelines/sweep_noise.py --data.source DIR --seeds 0 1 --train.epochs 20
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep", "noise")

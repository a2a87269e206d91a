"""Train one experiment.

uv run python pipelines/train.py --objective m_ltm_pot --objective.pair.transport_mass 0.8 --data.noise.ratio 0.4
uv run python pipelines/train.py --objective.scheme kcl --objective.pair partial_learning_to_match --scaling.workers 2
uv run python pipelines/train.py --resume runs/train-...
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("train")

"""Compare a knowledge base's settings (ASK): neighbours x injection x prototypes x refresh x modulation x seed.

    uv run python pipelines/sweep_knowledge.py                       # neighbours x injection ratio, and no knowledge
    uv run python pipelines/sweep_knowledge.py --table ablation      # ASK without each of its parts (Fu et al. 2025, Table 2)
    uv run python pipelines/sweep_knowledge.py --figure neighbours   # one setting alone (its sensitivity figures, 5 and 7)
    uv run python pipelines/sweep_knowledge.py --figure refresh --objective kcl
    uv run python pipelines/sweep_knowledge.py --objective.knowledge ask --objective.knowledge.refresh write_through

Scheme and pair loss are those of the experiment; --objective NAME or --objective.scheme NAME change them. The paper's own
points of the table and figures could not be read: those here are each part off once, and each setting around its default.
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep", "knowledge")

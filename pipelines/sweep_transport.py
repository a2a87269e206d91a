"""Compare partial transport's settings: transport mass x epsilon x noise ratio x seed (m-LTM with partial transport).

    uv run python pipelines/sweep_transport.py
    uv run python pipelines/sweep_transport.py --masses 0.5 0.7 0.9 1.0 --epsilons 0.05 --noise 0.4 --seeds 0 1
    uv run python pipelines/sweep_transport.py --masses 1.0 --epsilons 0.01 0.03 0.05 0.1 0.5 --noise 0.0

The first is the table of masses under noise, `auto` among them; the last the curve over epsilon alone.
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep", "transport")

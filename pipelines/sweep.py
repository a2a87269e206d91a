"""Search any space of settings: grid, random or Optuna, with early stopping (ASHA) or a race.

    uv run python pipelines/sweep.py --objective m_ltm_pot --search optuna --trials 20 --scheduler asha \\
        --space 'objective.pair.transport_mass=uniform(0.3,1)' 'data.noise.ratio=grid(0.2,0.4)'
    uv run python pipelines/sweep.py --resume runs/sweep-... --trials 40 --seeds 0 1
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("sweep")

"""`python -m ray_atr.cli`, which is `ray-atr`."""

from ray_atr.cli import main

if __name__ == "__main__":
    main()

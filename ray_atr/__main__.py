"""`python -m ray_atr` is the command `ray-atr`, where the folder of a Python's commands is not on the path."""

from ray_atr.cli import main

main()

"""Scripts that are copied into an export as `load.py`; they embed with it, without this package."""

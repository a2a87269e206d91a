"""What is copied into an export as `load.py`: how to embed with it. None of them imports this package."""

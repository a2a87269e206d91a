"""Fill missing languages of a data set with a local translation model, or check translations by translating them back.

uv run python pipelines/translate_captions.py fill --data data/clotho --out data/clotho8 --model facebook/nllb-200-distilled-600M
uv run python pipelines/translate_captions.py check --data data/clotho8 --model facebook/nllb-200-distilled-600M --split test
"""

from ray_atr.cli import main

if __name__ == "__main__":
    main("translate")

"""Words for class labels and sounds in eight languages: two tables, and a grammar file for each language.

To add a language, add its columns to the tables, write a file such as `deu.yaml` (`grammar.py` says what is in it), and name
it in `ray_atr.common.language_codes.LANGUAGES`. Captions in any other language of ISO 639-3 need no file.
"""

"""The languages of captions, one file a language: its names, words for class labels, and a grammar if it has one.

To add a language, write a file such as `deu.py` and name it in `codes.LANGUAGES`. Captions in any other language of
ISO 639-3 need no file.
"""

"""What is heard, said in eight languages: words for class labels and a grammar, one file a language.

To add a language, write a file such as `deu.py`, and name it in `words.WORDS` and in `ray_atr.data.language_codes.LANGUAGES`.
Captions in any other language of ISO 639-3 need no file.
"""

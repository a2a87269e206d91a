"""Encoding of clips and captions, for training, evaluation, knowledge bases and frozen towers alike."""

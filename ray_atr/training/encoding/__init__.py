"""From clips and captions to vectors, the same way for training, evaluation, knowledge bases and frozen towers."""

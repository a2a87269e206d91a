"""Language packs: text encoders of many languages, fitted to an existing space of audio vectors, which does not change."""

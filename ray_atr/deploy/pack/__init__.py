"""A language pack: texts in many languages fitted to a space of audio vectors that exists and stays as it is."""

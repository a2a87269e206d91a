"""The papers' table layouts and printed numbers, and the reality check."""

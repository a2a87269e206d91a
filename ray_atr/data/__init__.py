"""Clips: their schema, sources, noise, features, and the streams that trainers read."""

"""Clips: their schema, shards, noise, features, and the streams that trainers read."""

"""ray_atr: train, sweep and compare audio-text retrieval objectives on noisy, multilingual data."""

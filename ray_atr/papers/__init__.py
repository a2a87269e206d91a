"""What the three papers bring: their recipes, sweeps, layouts and printed numbers, and the reality check."""

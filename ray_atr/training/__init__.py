"""Training one experiment: the loop of one worker, the exact step, checkpoints, and Ray Train around them."""

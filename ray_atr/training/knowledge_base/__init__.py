"""What a run remembers beyond its batch: knowledge bases, queues, momentum encoders, and how they are searched."""

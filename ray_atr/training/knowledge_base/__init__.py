"""Knowledge from outside the batch while a run trains: knowledge bases, queues, momentum encoders, and their search."""

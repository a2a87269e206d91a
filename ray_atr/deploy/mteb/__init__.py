"""A retriever in MTEB's hands: its encoder, data sets as its tasks, and what an evaluation asks of it. Needs the extra `mteb`."""

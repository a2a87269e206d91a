"""What to say where memory was too small: which settings lower it."""

from __future__ import annotations

SIGNS = (
    "OutOfMemoryError",  # torch's on a GPU, Ray's of a node
    "ObjectStoreFullError",
    "OutOfDiskError",  # Ray's, when what does not fit into the object store does not fit on the disk either
    "MemoryError",  # Python's and NumPy's
    "can't allocate memory",  # torch's on a CPU
    "OOM killer",  # what Ray thinks of a process that was killed from outside
)
REMEDY = (
    "if memory was too small: lower train.embedding_chunk and train.language_chunk (the same gradient), train.batch_size, "
    "evaluation.batch_size, or --concurrency; objective.knowledge.storage=float16 halves a base; a larger object store is "
    "`ray start --object-store-memory`"
)


def remedy(text: str) -> str:
    """`; if memory was too small: ...` for an error's text that tells of it, with its type; nothing for another."""
    return f"; {REMEDY}" if any(sign in text for sign in SIGNS) else ""

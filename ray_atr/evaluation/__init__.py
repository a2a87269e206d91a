"""Saved retrievers on a data set's split: find them, encode on all workers, score, write and track one evaluation."""

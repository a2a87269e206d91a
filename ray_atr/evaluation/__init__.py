"""Evaluation of saved retrievers on a data set's split: encoding, scores, comparison, pages and tracking."""

"""What becomes of a trained retriever: other formats, an index, queries, a server, and how sure an answer is."""

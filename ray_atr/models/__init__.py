"""The two towers, the retriever that joins them, and the loading of published weights."""

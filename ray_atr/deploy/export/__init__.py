"""Export of a trained retriever to the formats of other libraries, checked by loading it without this package."""

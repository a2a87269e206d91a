"""A trained retriever in the formats of other libraries: written, loaded without this package, compared, then kept."""

"""A trained retriever in use: exported to other tools, calibrated, and searched with."""

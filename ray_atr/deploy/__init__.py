"""Uses of a trained retriever: export to other tools, search indexes, a server, language packs."""

"""What becomes of a trained retriever: exported, calibrated, an archive that is searched, and a server."""

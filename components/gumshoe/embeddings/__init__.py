"""Text embeddings, for documents and for similarity."""

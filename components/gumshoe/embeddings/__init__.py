"""Text to vectors, for documents and for similarity."""

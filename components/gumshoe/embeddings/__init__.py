"""Text embeddings, for documents, mail and similarity: chunks, models, dense retrieval, and fusion with words."""

"""Base models: files, shapes, and the model that is trained."""

"""Base models by name and from GGUF files: fetch them, convert them once into the cache, and verify them."""

from gumshoe.artifacts.base_models.cache import CONVERTED_FORMS, resolve_base_model

__all__ = ["CONVERTED_FORMS", "resolve_base_model"]

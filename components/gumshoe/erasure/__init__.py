"""Erase a person, a message or a document from indexes, files and stores.

Guarantees:

- Nothing is changed without confirmation: `plan` only looks.
- Each file, index and artifact is replaced in one step. An erasure that was interrupted can be run again.
- A published artifact is never edited: a redacted successor is published, and the old one is deleted.
- What cannot be erased, such as what the weights of an adapter have learned, is named.
"""

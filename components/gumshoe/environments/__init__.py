"""Environments: the tools of one episode and its state, for mail, for documents, and for what users add."""

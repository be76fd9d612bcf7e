"""Environments: the tools and the state of one episode, for mail, documents and custom indexes."""

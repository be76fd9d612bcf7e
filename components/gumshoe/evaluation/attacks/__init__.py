"""Measure attacks: how often messages in an inbox make a policy do what their sender wants."""

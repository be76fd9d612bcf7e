"""Gumshoe trains search agents with reinforcement learning and puts them into service."""

"""Supervised fine-tuning: warm starts from demonstrations."""

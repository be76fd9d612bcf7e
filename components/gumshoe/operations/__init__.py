"""What operators run."""

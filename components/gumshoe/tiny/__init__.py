"""Make the tiny policy that stands in for a large one on a laptop and in tests."""

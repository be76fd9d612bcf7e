"""Build the tiny policy, which replaces a large model on a laptop and in tests."""

"""Fuzzing: parsers and the HTTP service with random, broken and hostile input.

`python -m tests.fuzzing --seconds 60` fuzzes each target for a minute and prints its seed. An input that fails is made
small and written to `corpus/TARGET/`, from where the tests replay it.
"""

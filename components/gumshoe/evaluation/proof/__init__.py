"""The proof of a run: its claims, the files that show them, and a page for a reader who does not believe them."""

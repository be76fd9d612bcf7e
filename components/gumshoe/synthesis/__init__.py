"""Invented mail with questions about it, for trying, testing and training without anybody's real mail."""

"""The processes of a run: supervisor, servers, trainers, and what they share."""

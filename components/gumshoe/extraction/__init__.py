"""Extract the text of files that may be hostile, in processes with limits on time and memory."""

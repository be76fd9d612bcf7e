"""Self-contained HTML pages: the design that all pages share, and their security policy."""

"""The agent server: the trained agent over HTTP and MCP, to whoever may read the mail that is asked about."""

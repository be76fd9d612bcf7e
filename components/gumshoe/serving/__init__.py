"""Serve the trained agent over HTTP and MCP, with access control by inbox."""

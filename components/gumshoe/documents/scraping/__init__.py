"""Fetch web pages as documents: politely, within limits, and only from permitted addresses."""

"""Searches: previewed, run with a method of one's own, and shown."""

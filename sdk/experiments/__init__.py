"""Experiments: lists of them, the state of each, and what its user can do with it."""

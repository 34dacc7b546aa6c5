"""Checkpoints: found, chosen, copied, checked, changed and loaded."""

"""Disk usage of experiments: its size, and the rules of deletion."""

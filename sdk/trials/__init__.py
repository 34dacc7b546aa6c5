"""Trials: their state, metrics and logs."""

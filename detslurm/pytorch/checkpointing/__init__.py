"""Checkpoints of PyTorch trials: what they hold, when they are saved, how they are loaded."""

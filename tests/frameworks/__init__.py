"""Frameworks with a training loop of their own, without a cluster."""

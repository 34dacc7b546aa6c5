"""The model registry: names and numbered versions for checkpoints."""

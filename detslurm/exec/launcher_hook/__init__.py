"""A directory for PYTHONPATH: its `sitecustomize` adapts the launchers of other projects."""

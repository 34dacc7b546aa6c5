"""Collective calls among MPI processes."""

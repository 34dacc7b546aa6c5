"""Collective calls over unix sockets inside a node and TCP between nodes."""

"""Asynchronous halving: brackets of rungs, by promotion or by stopping."""

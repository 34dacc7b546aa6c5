"""Notices of experiments, which users get by the ways that they have defined."""

"""Notices: what users are told about their experiments, by the ways that they have defined."""

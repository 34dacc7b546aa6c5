"""How the jobs of an experiment's trials are requested, requested again, and deferred."""

"""The experiment configuration as immutable structs, one module for each part of it."""

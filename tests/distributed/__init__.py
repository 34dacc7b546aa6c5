"""The ranks of a trial together, over every transport."""

"""Slot-hours: what a submission will cost, what an experiment may use, and what it made of them."""

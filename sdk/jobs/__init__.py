"""Jobs of the queue: whose they are, where they stand, and how their user moves them."""

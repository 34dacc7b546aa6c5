"""For frameworks with a training loop of their own: their reports, and the goal of a search."""

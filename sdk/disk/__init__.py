"""What experiments keep on disk: how much it is, and what is deleted when."""

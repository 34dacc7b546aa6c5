"""The ground: modules that every package may import, and that import none of them."""

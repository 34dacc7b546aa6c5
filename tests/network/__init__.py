"""The store on a real network file system."""

"""Looking at experiments: one snapshot document, and the faces that show it."""

"""Looking at experiments: the snapshot document and the faces that show it."""

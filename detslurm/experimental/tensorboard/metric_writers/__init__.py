"""Writers of TensorBoard files."""

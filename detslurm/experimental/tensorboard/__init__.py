"""Names that code written for Determined imports of its TensorBoard package."""

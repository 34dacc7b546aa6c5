"""A finished experiment as one file, from one site to another.

`writing` makes the file, `importing` takes it into a store and trusts nothing in it; both agree on
`archive`.
"""

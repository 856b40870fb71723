"""Fuzz targets for what Python parses: each module has a `test_one_input` that lets only documented errors pass."""

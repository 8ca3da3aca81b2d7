"""The seam for grammar backends, which restrict answers to a schema, a pattern or a grammar."""

"""Attention over the KV pool, one backend per file."""

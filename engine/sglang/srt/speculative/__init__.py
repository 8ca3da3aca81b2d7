"""Speculative decoding: names, algorithms of plugins, and the interface of their workers."""

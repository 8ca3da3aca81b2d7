"""Measures running servers from outside, over HTTP."""

"""Benchmarks: each row beside its peers in the same run, as ratios with their spread."""

"""Runs a loaded model on batches: logits, sampled tokens, and how much memory there is."""

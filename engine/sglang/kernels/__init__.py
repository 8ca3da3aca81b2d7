"""Tensors in, tensors out: every Triton kernel beside its twin in plain torch, which it equals."""

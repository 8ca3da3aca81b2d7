"""Reads weights and tokenizer files of every supported format."""

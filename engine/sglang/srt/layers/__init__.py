"""Modules that models are built from."""

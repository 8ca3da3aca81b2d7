"""Helpers that test files of the engine import by their documented names."""

"""The engine: loads one model and generates tokens for many requests at once."""

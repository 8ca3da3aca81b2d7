"""Adapters: small changes of a model's linear layers, chosen per request."""

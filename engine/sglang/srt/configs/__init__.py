"""What a model's files say about it, before any weight is read."""

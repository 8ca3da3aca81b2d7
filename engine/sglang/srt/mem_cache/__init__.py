"""KV memory: pools, the allocator of their pages, and the prefix cache."""

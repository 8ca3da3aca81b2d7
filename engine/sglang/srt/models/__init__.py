"""Model architectures, one per file, found by the names in their configuration."""

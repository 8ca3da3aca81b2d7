"""The scheduler: from an arriving request to its last token."""

"""Values that travel between the layers: requests, batches, messages. Data, no behaviour."""

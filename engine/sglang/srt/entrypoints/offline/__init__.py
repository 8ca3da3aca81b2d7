"""The engine in the caller's own process: no HTTP, no gRPC."""

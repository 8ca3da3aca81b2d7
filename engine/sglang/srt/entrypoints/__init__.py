"""Where processes are started and requests enter: launcher, gRPC service, front door."""

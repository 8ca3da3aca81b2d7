"""What programs run against: our own server, and other providers' APIs."""

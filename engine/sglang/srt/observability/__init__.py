"""What the engine shows of itself: metrics, log lines, progress."""

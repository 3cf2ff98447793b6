"""Object detection: NonMaxSuppression."""

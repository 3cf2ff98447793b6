"""Client side of the scheduler: admission, attempts, retries and responses."""

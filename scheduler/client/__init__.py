"""The client's side: admission, attempts, answers."""

"""Dynamic batching: which models allow it, and the open batch axis that it needs."""

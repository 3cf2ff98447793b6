"""Reports: one JSON document about a model on its devices, and what is drawn from it."""

"""Plans on the actors of a Ray cluster."""

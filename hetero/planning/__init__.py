"""Plans by cost: what is measured, what is searched, and the report of what was chosen."""

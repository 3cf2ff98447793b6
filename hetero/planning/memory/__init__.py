"""Memory of device processes: prediction, and plans that keep it within budgets."""

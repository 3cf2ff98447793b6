"""Examples to read, run and start from: a plugin, an operator, a model that needs three devices."""

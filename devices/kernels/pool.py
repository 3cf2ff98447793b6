"""Pooling: maximum, average and Lp over windows or whole planes, and MaxUnpool."""

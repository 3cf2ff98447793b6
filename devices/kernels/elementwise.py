"""Element-wise arithmetic, powers, rounding, trigonometry and bit operations."""

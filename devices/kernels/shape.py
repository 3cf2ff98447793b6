"""Operators that move elements without changing them: reshape, transpose, join, cut, pad."""

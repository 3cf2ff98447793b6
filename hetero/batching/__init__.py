"""Rows of several requests as one run: which models keep rows apart, and their open first axis."""

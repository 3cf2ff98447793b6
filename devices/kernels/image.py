"""Operators that sample images: grids, regions of interest, columns to image."""

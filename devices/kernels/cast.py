"""Conversions between element types."""

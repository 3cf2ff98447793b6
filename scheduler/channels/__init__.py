"""Channels: connections over which clients and devices exchange messages."""

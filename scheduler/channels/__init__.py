"""Channels: the ways on which a deployment's parties, its client and its devices, send messages."""

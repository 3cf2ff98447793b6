"""Attention and what goes with it: rotary embedding and cache updates."""

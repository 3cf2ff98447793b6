"""Normalisations over batch, instance, group, layer, channel window or norm."""

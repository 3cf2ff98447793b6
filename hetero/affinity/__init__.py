"""From support to a device for each node."""

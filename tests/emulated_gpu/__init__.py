"""A GPU without a GPU: arrays that behave as a device's, and the plugin on them."""

"""The plugin contract: what an author writes, its properties, and what a device says of nodes."""

"""The plugin contract: base classes of plugins, properties, discovery and queries."""

"""What a plugin author imports: the model view, the plugin contract, properties and errors."""

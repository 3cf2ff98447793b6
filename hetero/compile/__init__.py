"""From a model and a request to a compiled model on its devices; `Compiler` leads through."""

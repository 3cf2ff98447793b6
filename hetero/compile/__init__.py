"""Compilation: from a model and a compile request to a deployed model; see `Compiler`."""

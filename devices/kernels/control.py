"""Control flow: operators whose attribute is a graph."""

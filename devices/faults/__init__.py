"""Known faults of vendor runtimes: nodes that a runtime accepts and computes wrong."""

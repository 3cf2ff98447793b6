"""The NULL device: scripted time, memory, support and faults."""

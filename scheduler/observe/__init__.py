"""Looking on: what waits and runs now, what observers are told, and the metrics made of both."""

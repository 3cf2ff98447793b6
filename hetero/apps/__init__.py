"""Applications on top of the core: text generation, the model server and the simulator."""

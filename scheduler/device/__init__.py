"""Device side of the scheduler: discovery of devices, and execution of stages."""

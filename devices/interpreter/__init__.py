"""The interpreter: runs a graph node by node with kernels on arrays; devices stand on it.

A run's life
------------
**Built.** `program` makes a `block` of a model once: `implementations` says what runs each node (a
kernel, a function's body, or onnx's own evaluator), and each node becomes a task and a step over
numbered slots. A body of a loop is a block of its own.

**Run.** Each run copies the slots that hold constants, puts its inputs beside them and takes the
steps in topological order. A step clears the slots that no later step reads, so an intermediate is
freed after its last use. On a device with memory of its own, the `backend` uploads and downloads.
"""

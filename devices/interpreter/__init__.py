"""The interpreter: runs a graph node by node with kernels on arrays, for devices to build on.

**Compilation.** `program` compiles a model to a `block` once: `implementations` finds the
implementation of each node (a kernel, a function's body or onnx's own evaluator), and each node
becomes a task and a step over numbered slots. The body of a control flow node is a block too.

**Execution.** A run copies the slots, which hold the constants, adds its inputs and executes the
steps in topological order. A step clears the slots that no later step reads, so an intermediate is
freed after its last use. On a device with its own memory, the `backend` uploads and downloads.
"""

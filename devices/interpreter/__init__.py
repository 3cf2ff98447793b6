"""The interpreter: runs a graph node by node with kernels on arrays; devices stand on it.

A run's life
------------
**Built.** `program` makes a `block` of a model once: `implementations` says what runs each node (a
kernel, a function's body, or onnx's own evaluator), and each node becomes a task and a step over
numbered slots. A body of a loop is a block of its own. On a device with memory of its own, that is
all: its `backend` uploads and downloads, and each run goes through the steps.

**Traced.** On the host, the first run with inputs of new shapes is traced (`trace`): each node
runs, and the trace notes whether its results are known from the shapes alone, a view of an input,
or arrays that need memory, and from when to when. `layout` then lays those out in one arena.

**Recorded.** In the trace, a kernel runs once more on `stand_in` arrays (`recorder`): what it
decides from shapes, types and constants is settled, and what it does to elements goes on a `tape`
of steps. The steps are held to what the kernel gave; a kernel that looks at elements, or gives
something else, stays a call of itself. The kernel of `hetero.devices.cpu.fast` makes its `calls`
itself.

**Bound.** Later runs with these shapes copy the inputs into the arena and make the calls, one after
the other, without a decision between them (`bound`). `bound_cache` keeps a trace for each of the
latest shapes, and an arena for each run under way.

**Resumed.** Where a bound run meets what the trace did not foresee, such as a shape that depends on
data, it goes on from that node through the block's steps.
"""

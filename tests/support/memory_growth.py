"""Program that prints the growth of its memory, in bytes, over a number of requests."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
from onnx import helper

from tests.support.small_models import compile_cpu, make_model


def resident_nbytes() -> int:
    """Return the resident memory of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


#: Image sizes of consecutive requests.
SIZES = range(8, 58)


def main(count: int) -> None:
    rng = np.random.default_rng(3)
    images = [rng.standard_normal((1, 8, size, size), dtype=np.float32) for size in SIZES]
    weights = {
        "w": rng.standard_normal((16, 8, 3, 3), dtype=np.float32),
        "v": rng.standard_normal((16, 1, 3, 3), dtype=np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1] * 4, group=16),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    model = make_model(nodes, {"x": images[0]}, ["y"], weights)
    for axis, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    compiled = compile_cpu(model, INFERENCE_NUM_THREADS=1)

    def run_requests(count: int) -> None:
        for i in range(count):
            compiled([images[i % len(images)]])

    run_requests(4000)  # fills the caches of Python and numpy
    before = resident_nbytes()
    run_requests(count)
    print(resident_nbytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Prints by how many bytes a number of requests grows a process that does nothing else."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
from onnx import helper

from tests.cpu.models import compile_cpu, make_model


def resident_nbytes() -> int:
    """Return what the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main(count: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 8, 14, 14), dtype=np.float32)
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
    compiled = compile_cpu(make_model(nodes, {"x": x}, ["y"], weights), INFERENCE_NUM_THREADS=1)

    def ask(count: int) -> None:
        for _ in range(count):
            compiled.create_infer_request().infer([x])

    ask(1000)
    before = resident_nbytes()
    ask(count)
    print(resident_nbytes() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]))

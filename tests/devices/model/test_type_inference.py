"""Type inference in a worker process: restarts, threads, forks, and the end of the process."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import onnx
import pytest

from hetero.devices.errors import ModelError
from hetero.devices.model.type_inference import infer_types

ROOT = Path(__file__).parents[3]
CRASHING_MODEL = (
    "g (float[4,4] x, int64[3] i) => (float y) { y = GatherND<batch_dims = -2147483649>(x, i) }"
)


def parse(text):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')


def inferred_shape(count):
    """Infer the shape of an inner value of a model: [count, 3]."""
    graph = infer_types(
        parse(f"g (float[{count}, 3] x) => (float[a, b] y) {{ t = Neg(x) y = Abs(t) }}")
    )
    return [d.dim_value for d in graph.value_info[0].type.tensor_type.shape.dim]


def test_open_hidden_size_of_attention_stays_open():
    """Inference of onnx 1.23 returns 0, by which every result would be refused."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]>
        g (float[a,b,c] q, float[d,e,f] k, float[g,h,i] v) => (float[?,?,?] y)
        { y = Attention<q_num_heads = 9, kv_num_heads = 3>(q, k, v) }"""
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (port,) = infer_types(model).output
    assert port.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert not any(d.HasField("dim_value") for d in port.type.tensor_type.shape.dim)


def test_number_of_frequencies_is_not_guessed():
    """Inference of onnx 1.23 ignores that the spectrum is one-sided by default."""
    graph = infer_types(
        parse(
            """g (float[1,32,1] x, float[16] w) => (float[?,?,?,?] y) <int64 s = {8}>
            { y = STFT(x, s, w) z = Neg(y) }"""
        )
    )
    sizes = graph.output[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in sizes] == [1, 3, 0, 2]


def test_inference_recovers_from_a_crash():
    for count in (5, 7):
        with pytest.raises(ModelError, match="crashes or does not terminate"):
            infer_types(parse(CRASHING_MODEL))
        assert inferred_shape(count) == [count, 3]


def test_concurrent_inference_returns_each_threads_types():
    shapes = {}

    def infer(count):
        shapes[count] = [inferred_shape(count) for _ in range(20)]

    threads = [threading.Thread(target=infer, args=(count,)) for count in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert shapes == {count: [[count, 3]] * 20 for count in range(1, 5)}


def test_contradiction_of_types_raises():
    body = "b (int64 n, bool t) => (bool u, float v) { u = Not(t) v = Neg(x) }"
    model = parse(f"g (float[2] x, int64 i) => (float y) {{ y = Loop(i) <body = {body}> }}")
    with pytest.raises(ModelError, match="contradict"):
        infer_types(model)


SCRIPT = """
import os, signal, onnx
from hetero.devices.model import type_inference
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[n] y) { y = Abs(x) }')

def infer():
    return type_inference.infer_types(model).output[0].type.tensor_type.shape.dim[0].dim_value

assert infer() == 2
first = type_inference._WORKER._process.pid
child = os.fork()
if child == 0:
    os._exit(0 if infer() == 2 and type_inference._WORKER._process.pid != first else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert infer() == 2 and type_inference._WORKER._process.pid == first
print(first, flush=True)
os.kill(os.getpid(), END)
"""


@pytest.mark.parametrize("end", [0, 9], ids=["exit", "kill"])
def test_worker_is_per_process_and_ends_with_it(end):
    script = SCRIPT.replace("END", str(end))
    parent = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert parent.returncode == -end, parent.stderr
    status = Path(f"/proc/{int(parent.stdout)}/stat")
    deadline = time.monotonic() + 60
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.01)


def test_only_the_worker_calls_onnx_inference():
    callers = {
        path.relative_to(ROOT).as_posix()
        for package in ("devices", "scheduler", "hetero")
        for path in (ROOT / package).rglob("*.py")
        if "infer_shapes" in path.read_text()
    }
    assert callers == {"devices/model/type_inference_worker.py"}

"""Device NULL: scripted time, support, shapes, memory and faults."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    DeadlineError,
    InferenceError,
    PropertyError,
    RequestCancelledError,
    UnsupportedNodesError,
)
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.plugin.program import RunContext
from tests.support.networks import model

CHAIN = model(
    "(float[N,3] x) => (float[N,3] y, int64[2,M] z) <float[N,3] h>"
    " {h = Relu(x) y = Tanh(h) z = NonZero(y)}"
)
X = np.ones((4, 3), np.float32)


def compiled(**config):
    return NullPlugin().compile_model(CHAIN, config)


class SleepRecorder(RunContext):
    """A context that adds up the time of sleeps instead of sleeping."""

    sleep_s = 0.0

    def sleep(self, seconds):
        self.sleep_s += seconds


def test_outputs_are_zeros_of_the_inferred_shapes():
    result = compiled(NULL_OUTPUT_DIMENSION=5)({"x": X})
    assert result["y"].shape == (4, 3)  # N is the input's
    assert result["z"].shape == (2, 5)  # M is unknown
    assert not result["y"].any()
    assert result["z"].dtype == np.int64


def test_output_shapes_property_overrides_inference():
    assert compiled(NULL_OUTPUT_SHAPES={"z": [2, 9]})({"x": X})["z"].shape == (2, 9)
    assert compiled(NULL_OUTPUT_SHAPES='{"z": [2, 8]}')({"x": X})["z"].shape == (2, 8)


def test_run_time_is_the_sum_of_node_times():
    times = {"h": 10, "op:Tanh": 200}
    context = SleepRecorder(profile=True)
    compiled(NULL_NODE_TIME_US=3000, NULL_NODE_TIMES_US=times).run([X], context)
    assert context.sleep_s == pytest.approx(3210e-6)
    assert context.node_times_s == pytest.approx({"h": 10e-6, "y": 200e-6, "z": 3000e-6})


@pytest.mark.parametrize("busy", [False, True])
def test_run_waits(busy):
    device = compiled(NULL_NODE_TIME_US=5000, NULL_BUSY=busy)
    start_s = time.perf_counter()
    device({"x": X})
    assert time.perf_counter() - start_s >= 15e-3


@pytest.mark.parametrize(
    ("config", "nodes"),
    [
        ({}, ["h", "y", "z"]),
        ({"NULL_SUPPORTED": ["op:Relu", "z"]}, ["h", "z"]),
        ({"NULL_SUPPORTED": "[xyz]*"}, ["y", "z"]),
        ({"NULL_UNSUPPORTED": "op:Tanh"}, ["h", "z"]),
        ({"NULL_SUPPORTED": ()}, []),
    ],
)
def test_support_follows_properties(config, nodes):
    support = NullPlugin().query_model(CHAIN, config)
    assert list(support) == nodes
    assert {r.code for refusals in support.unsupported.values() for r in refusals.values()} <= {
        "policy"
    }
    if len(nodes) < 3:
        with pytest.raises(UnsupportedNodesError, match="NULL does not support"):
            compiled(**config)


def test_only_the_nth_run_fails():
    device = compiled(NULL_FAULT="fail@2")
    device({"x": X})
    with pytest.raises(InferenceError, match="NULL_FAULT=fail@2"):
        device({"x": X})
    device({"x": X})


def test_hung_run_obeys_cancellation_and_deadline():
    hung_model = PluginSubject(NullPlugin()).compile_model(CHAIN, {"NULL_FAULT": "hang@1"})
    request = hung_model.create_infer_request()
    request.start_async({"x": X})
    assert not request.wait_for(20)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    context = RunContext()
    context.set_timeout(0.05)
    with pytest.raises(DeadlineError):
        compiled(NULL_FAULT="hang@1").run([X], context)


def test_die_fault_kills_the_process():
    code = (
        "import numpy as np\n"
        "from tests.devices.null.test_plugin import compiled, X\n"
        "device = compiled(NULL_FAULT='die@2')\n"
        "device({'x': X}); print('one', flush=True); device({'x': X}); print('two')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.stdout == "one\n", process.stderr
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("fault", ["fail", "fail@0", "explode@1", "fail@x", "@1"])
def test_invalid_fault_raises(fault):
    with pytest.raises(PropertyError, match="KIND@N"):
        compiled(NULL_FAULT=fault)


def test_memory_property_allocates_without_touching():
    before = _resident_nbytes()
    device = compiled(NULL_MEMORY_NBYTES=200_000_000)
    # Untouched memory is not resident, so simulated devices are cheap.
    assert device.get_property("NULL_MEMORY_NBYTES") == 200_000_000
    assert _resident_nbytes() - before < 250_000_000


def test_bare_hetero_excludes_null():
    assert NullPlugin.automatic is False


def _resident_nbytes():
    with open(f"/proc/{os.getpid()}/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_device_without_dynamic_shapes_refuses_open_sizes():
    support = NullPlugin().query_model(CHAIN, {"NULL_DYNAMIC_SHAPES": False})
    codes = {r.code for refusals in support.unsupported.values() for r in refusals.values()}
    assert (set(support), codes) == (set(), {"dynamic_shape"})
    with pytest.raises(UnsupportedNodesError, match=r"'x' is tensor\(float\)\[N, 3\]"):
        compiled(NULL_DYNAMIC_SHAPES=False)
    static_model = model("(float[4,3] x) => (float[4,3] y) {y = Relu(x)}")
    assert not NullPlugin().query_model(static_model, {"NULL_DYNAMIC_SHAPES": False}).unsupported

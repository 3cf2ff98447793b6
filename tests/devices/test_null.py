"""The NULL device does what it is told: time, support set, shapes, faults."""

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


class Recorder(RunContext):
    """A context in which waiting takes no time."""

    slept = 0.0

    def sleep(self, seconds):
        self.slept += seconds


def test_outputs_are_zeros_of_the_inferred_shapes():
    result = compiled(NULL_OUTPUT_DIMENSION=5)({"x": X})
    assert result["y"].shape == (4, 3)  # N is known from the input
    assert result["z"].shape == (2, 5)  # M is not
    assert not result["y"].any()
    assert result["z"].dtype == np.int64


def test_output_shapes_may_be_given():
    assert compiled(NULL_OUTPUT_SHAPES={"z": [2, 9]})({"x": X})["z"].shape == (2, 9)
    assert compiled(NULL_OUTPUT_SHAPES='{"z": [2, 8]}')({"x": X})["z"].shape == (2, 8)


def test_time_is_the_sum_of_the_nodes():
    times = {"h": 10, "op:Tanh": 200}
    context = Recorder(profile=True)
    compiled(NULL_NODE_TIME_US=3000, NULL_NODE_TIMES_US=times).run([X], context)
    assert context.slept == pytest.approx(3210e-6)
    assert context.node_times_s == pytest.approx({"h": 10e-6, "y": 200e-6, "z": 3000e-6})


@pytest.mark.parametrize("busy", [False, True])
def test_it_really_waits(busy):
    device = compiled(NULL_NODE_TIME_US=5000, NULL_BUSY=busy)
    begun_s = time.perf_counter()
    device({"x": X})
    assert time.perf_counter() - begun_s >= 15e-3


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({}, ["h", "y", "z"]),
        ({"NULL_SUPPORTED": ["op:Relu", "z"]}, ["h", "z"]),
        ({"NULL_SUPPORTED": "[xyz]*"}, ["y", "z"]),
        ({"NULL_UNSUPPORTED": "op:Tanh"}, ["h", "z"]),
        ({"NULL_SUPPORTED": ()}, []),
    ],
)
def test_support_set(config, taken):
    support = NullPlugin().query_model(CHAIN, config)
    assert list(support) == taken
    assert {r.code for refusals in support.unsupported.values() for r in refusals.values()} <= {
        "policy"
    }
    if len(taken) < 3:
        with pytest.raises(UnsupportedNodesError, match="NULL does not support"):
            compiled(**config)


def test_the_nth_run_fails_and_the_others_do_not():
    device = compiled(NULL_FAULT="fail@2")
    device({"x": X})
    with pytest.raises(InferenceError, match="NULL_FAULT=fail@2"):
        device({"x": X})
    device({"x": X})


def test_a_hung_run_can_be_cancelled_and_has_a_deadline():
    hung = PluginSubject(NullPlugin()).compile_model(CHAIN, {"NULL_FAULT": "hang@1"})
    request = hung.create_infer_request()
    request.start_async({"x": X})
    assert not request.wait_for(20)
    request.cancel()
    with pytest.raises(RequestCancelledError):
        request.wait()
    late = RunContext()
    late.set_timeout(0.05)
    with pytest.raises(DeadlineError):
        compiled(NULL_FAULT="hang@1").run([X], late)


def test_dying_ends_the_process():
    code = (
        "import numpy as np\n"
        "from tests.devices.test_null import compiled, X\n"
        "device = compiled(NULL_FAULT='die@2')\n"
        "device({'x': X}); print('one', flush=True); device({'x': X}); print('two')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "one\n", done.stderr
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("fault", ["fail", "fail@0", "explode@1", "fail@x", "@1"])
def test_faults_that_cannot_be(fault):
    with pytest.raises(PropertyError, match="KIND@N"):
        compiled(NULL_FAULT=fault)


def test_it_holds_the_memory_it_is_told_to():
    before = _resident()
    device = compiled(NULL_MEMORY_NBYTES=200_000_000)
    # Memory that nobody touched is not resident, so a simulated device costs nothing.
    assert device.get_property("NULL_MEMORY_NBYTES") == 200_000_000
    assert _resident() - before < 250_000_000


def test_bare_hetero_leaves_it_out():
    assert NullPlugin.automatic is False


def _resident():
    with open(f"/proc/{os.getpid()}/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_device_of_fixed_shapes_refuses_open_ones():
    support = NullPlugin().query_model(CHAIN, {"NULL_DYNAMIC_SHAPES": False})
    codes = {r.code for by in support.unsupported.values() for r in by.values()}
    assert (set(support), codes) == (set(), {"dynamic_shape"})
    with pytest.raises(UnsupportedNodesError, match=r"'x' is tensor\(float\)\[N, 3\]"):
        compiled(NULL_DYNAMIC_SHAPES=False)
    fixed = model("(float[4,3] x) => (float[4,3] y) {y = Relu(x)}")
    assert not NullPlugin().query_model(fixed, {"NULL_DYNAMIC_SHAPES": False}).unsupported

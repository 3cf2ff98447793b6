"""Everyday use on Ray: the API on the cluster of the tests, and commands that start a cluster."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.cli import model_command as job
from hetero.devices import errors
from hetero.scheduler.observe.metrics import Metrics
from hetero.scheduler.processes import home_process
from tests.scheduler.endpoints import wait_for
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[3]
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
SPLIT = "HETERO:CPU.0,CPU.1"


def test_onnxruntime_session_runs_on_two_devices(core):
    session = hetero.InferenceSession(
        branches(), devices=SPLIT, affinity={"tanh": "CPU.1"}, core=core
    )
    assert set(session.get_providers()) == {"CPU.0", "CPU.1"}
    expected, (output,) = branches_output(X), session.get_outputs()
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-6)
    calls: list[Any] = []
    session.run_async([output.name], {"x": X}, lambda *arguments: calls.append(arguments), "mine")
    wait_for(lambda: bool(calls))
    ((results, user, error),) = calls
    np.testing.assert_allclose(results[0], expected, rtol=1e-6)
    assert (user, error) == ("mine", "")
    binding, memory = session.io_binding(), np.zeros_like(expected)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output(output.name, hetero.OrtValue.ortvalue_from_numpy(memory))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(memory, expected, rtol=1e-6)


def test_large_input_may_change_after_the_start(core):
    """Both devices read it from shared memory, and the caller reuses its array."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        large (float[N] x) => (float[N] y) { h = Neg(x) y = Sub(h, x) }"""
    )
    with core.compile_model(model, SPLIT, affinity={"op:Sub": "CPU.1"}) as compiled:
        requests = [compiled.create_infer_request() for _ in range(4)]
        memory = np.empty(100_000, np.float32)
        for _ in range(3):
            for number, request in enumerate(requests):
                memory[:] = number
                request.start_async({"x": memory})
                memory[:] = -1
            for number, request in enumerate(requests):
                request.wait()
                np.testing.assert_array_equal(request.results["y"], memory * 2 * number)


def test_dropped_model_closes_after_its_last_request(core):
    deployments: Any = core.executor._deployments  # type: ignore[attr-defined]
    # Compared by key, because deployments of earlier tests may be closed at any moment.
    earlier_keys = {deployment.key for deployment in deployments}
    compiled = core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"})
    (key,) = {deployment.key for deployment in deployments} - earlier_keys
    request = compiled.create_infer_request()
    compiled({"x": X})
    del compiled
    np.testing.assert_allclose(request.infer({"x": X})[0], branches_output(X), rtol=1e-6)
    assert key in {deployment.key for deployment in deployments}
    del request
    wait_for(lambda: key not in {deployment.key for deployment in deployments})


def test_fork_cannot_use_the_parents_devices(core, monkeypatch):
    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        with monkeypatch.context() as forked:
            for home in list(home_process._HOMES):  # as the hook of a fork
                forked.setattr(home, "is_current", False)
            for use in (lambda: compiled({"x": X}), lambda: core.compile_model(branches())):
                with pytest.raises(errors.UnsupportedOperationError, match="fork"):
                    use()
            compiled.close()
            core.executor.close()
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_inputs_of_every_form_and_memory_order(core):
    wide = np.arange(24, dtype=np.float32).reshape(4, 6) / 9
    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        for inputs in (X, [X], X.tolist(), {"x": X}, {0: X}, {compiled.input(0): X}):
            np.testing.assert_allclose(compiled(inputs)[0], branches_output(X), rtol=1e-6)
        for x in (np.asfortranarray(X), wide[::2, ::2], wide[::-1, 3:], X.astype(">f4")):
            np.testing.assert_allclose(compiled(x)[0], branches_output(x), rtol=1e-6)
        results = compiled(X)
        copy = pickle.loads(pickle.dumps(results))
        np.testing.assert_array_equal(copy["y"], results["y"])


def test_input_may_change_after_the_request_starts(core):
    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        request = compiled.create_infer_request()
        x = X.copy()
        request.start_async({"x": x})
        x[:] = -100
        request.wait()
        np.testing.assert_allclose(request.results[0], branches_output(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (TensorProto.STRING, np.array(["a", "ü", ""], object)),
        (TensorProto.FLOAT16, np.array([0, 1, np.nan], np.float16)),
        (TensorProto.BFLOAT16, np.arange(3).astype(onnx.helper.tensor_dtype_to_np_dtype(16))),
        (TensorProto.INT4, np.arange(3).astype(onnx.helper.tensor_dtype_to_np_dtype(22))),
        (TensorProto.BOOL, np.array([True, False])),
        (TensorProto.FLOAT, np.zeros((0,), np.float32)),
    ],
)
def test_element_type_crosses_devices(core, element, values):
    ports = [helper.make_tensor_value_info(name, element, ["N"]) for name in "xz"]
    nodes = [
        helper.make_node("Identity", ["x"], ["y"], "first"),
        helper.make_node("Identity", ["y"], ["z"], "second"),
    ]
    graph = helper.make_graph(nodes, "types", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with core.compile_model(model, SPLIT, affinity={"second": "CPU.1"}) as compiled:
        assert len(compiled.subgraphs) == 2
        np.testing.assert_array_equal(compiled(values)[0], values, strict=True)


def test_external_weights_with_a_relative_path(core, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save_model(
        branches(), "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    with core.compile_model("model.onnx", SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        monkeypatch.chdir("/")
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


def test_compiled_model_is_called_from_many_threads(core):
    failures: list[object] = []

    def call(i: int) -> None:
        for _ in range(5):
            if not np.allclose(compiled(X * i)[0], branches_output(X * i), 1e-5):
                failures.append(i)

    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@pytest.mark.slow
def test_compiled_model_of_closed_core_raises():
    core = hetero.Core()
    compiled = core.compile_model(branches(), "CPU")
    core.close()
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        compiled(X)
    with pytest.raises(errors.ClusterError, match="closed"):
        compiled.export_model()
    compiled.close()


@pytest.mark.slow
def test_bench_reports_the_cost_of_lost_devices(shell, tmp_path, monkeypatch):
    onnx.save_model(branches(), path := tmp_path / "branches.onnx")
    monkeypatch.setattr(job, "SLOW_START_S", 0.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    # The 4th run is the 3rd request of the serial phase; a restarted device counts from 0 again.
    result = shell("bench -d NULL -c NULL_FAULT=die@4 -n 3 -j 1", path, ray=True)
    assert "`hetero pool up`" in result.err
    costs = re.findall(
        r"replayed after a device loss: 1; the longest took ([\d.]+) s of the ([\d.]+) s",
        " ".join(result.out.split()),
    )
    # With one request at a time nothing else runs in between.
    assert [0 < float(longest) <= float(whole) for longest, whole in costs] == [True, True]
    assert "pool up" not in shell("run -d CPU", path).err


def test_options_are_checked_by_devices(core):
    with pytest.raises(errors.PropertyError, match="NUM_STREAMS='many'"):
        core.set_property("CPU.1", {"NUM_STREAMS": "many"})
    with pytest.raises(errors.PropertyError, match="NUM_STREAMS='many'"):
        core.compile_model(branches(), SPLIT, {"NUM_STREAMS": "many"})
    with core.compile_model(branches(), SPLIT, {"NUM_STREAMS": 9}) as compiled:
        assert compiled(X)


def test_device_id_and_options_reach_the_device(core):
    config = {"DEVICE_ID": "1", "NUM_STREAMS": "2", "PERF_COUNT": "YES"}
    with core.compile_model(branches(), "CPU", config) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU.1"]
        assert compiled.get_property("NUM_STREAMS") == 2
        request = compiled.create_infer_request()
        request.infer(X)
        assert any(row.status == "EXECUTED" for row in request.profiling_info)
    with pytest.raises(errors.UnknownDeviceError, match=r"no device 'CPU\.7'"):
        core.compile_model(branches(), "CPU", {"DEVICE_ID": "7"})


def test_profiled_run_has_times_of_every_subgraph(core):
    config = {"PERF_COUNT": True}
    with core.compile_model(branches(), SPLIT, config, affinity={"tanh": "CPU.1"}) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        runs = compiled.submit({"x": X}).future.result(60).stage_timings
        nodes = compiled.get_runtime_model().nodes
        subgraphs = len(compiled.subgraphs)
    names = [n.name for n in nodes if n.metadata["execTimeMcs"] != "not_executed"]
    assert {name.partition(":")[0] for name in names} == {f"subgraph{i}" for i in range(subgraphs)}
    assert all(0 < run.infer_s <= run.run_s for run in runs)


def without_origin(value: Any) -> Any:
    """Remove node, time and command from a document."""
    if isinstance(value, dict):
        omitted = ("node", "query_s", "command")
        return {key: without_origin(item) for key, item in value.items() if key not in omitted}
    return [without_origin(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "line",
    [
        "devices",
        pytest.param("query MODEL -a op:Tanh=CPU", marks=pytest.mark.slow),
        pytest.param("query MODEL", marks=pytest.mark.slow),
    ],
)
def test_inprocess_output_equals_output_of_ray(shell, tmp_path, line):
    onnx.save_model(branches(), tmp_path / "m.onnx")
    line = line.replace("MODEL", str(tmp_path / "m.onnx"))
    local, on_ray = shell(f"{line} --json"), shell(f"{line} --json --executor ray", ray=True)
    assert without_origin(local.document) == without_origin(on_ray.document)


# The following commands start a Ray cluster of their own.


def start_command(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "hetero", *arguments],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_with(variable: str) -> list[str]:
    """Return the command lines of the processes with `variable` in their environment."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if variable.encode() in (entry / "environ").read_bytes():
                    processes.append((entry / "cmdline").read_text().replace("\0", " ")[:300])
            except OSError:
                continue
    return processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "arguments", "words"),
    [
        ({}, ("--address", "127.0.0.1:1"), "nothing answers at 127.0.0.1:1"),
        ({"RAY_ADDRESS": "nonsense"}, (), "wanted host:port"),
    ],
)
def test_unreachable_ray_is_refused_at_once(variables, arguments, words):
    process = start_command("run", "light:shufflenet", *arguments, **variables)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out == ""
    assert err.startswith("hetero: ClusterError: ")
    assert words in err
    assert "Traceback" not in err


def test_missing_temporary_folder_raises(monkeypatch):
    from hetero.scheduler.ray import session as ray_start

    monkeypatch.setattr(ray_start.tempfile, "gettempdir", lambda: "/nowhere")
    with pytest.raises(errors.ClusterError, match="TMPDIR"):
        ray_start._make_folder()


def test_removed_working_directory_raises(monkeypatch, tmp_path):
    from hetero.scheduler.ray import session as ray_start

    removed = tmp_path / "gone"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    with pytest.raises(errors.ClusterError, match="needs a working directory"):
        ray_start._make_folder()


def test_ctrl_c_cancels_the_run_but_not_the_model(core, tmp_path):
    def interrupt() -> None:
        wait_for(lambda: in_flight(metrics) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    metrics = Metrics(core.executor.load)
    gate = tmp_path / "open"
    with core.compile_model(branches(), "WAITING", {"WAIT_FILE": str(gate)}) as compiled:
        # Otherwise a request of another test could be counted.
        wait_for(lambda: in_flight(metrics) == 0)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            compiled({"x": X})
        thread.join()
        wait_for(lambda: in_flight(metrics) == 0)
        gate.touch()
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def in_flight(metrics: Metrics) -> float:
    (family,) = (f for f in metrics.families() if f.name == "hetero_requests_in_flight")
    return sum(sample.value for sample in family.samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "code", "server"),
    [
        pytest.param([signal.SIGINT], 130, "gcs_server", id="Ctrl-C while Ray starts"),
        pytest.param([signal.SIGINT], 130, "DeviceActor", id="Ctrl-C while it runs"),
        pytest.param([signal.SIGINT] * 2, 130, "gcs_server", id="Ctrl-C twice while Ray starts"),
        pytest.param([signal.SIGINT] * 2, 130, "DeviceActor", id="Ctrl-C twice while it runs"),
        pytest.param([signal.SIGTERM], 143, "DeviceActor", id="SIGTERM while it runs"),
    ],
)
def test_interrupted_command_leaves_no_process(numbers, code, server):
    """The signal is sent as soon as a server process of Ray runs."""
    mark = f"MARK_{time.monotonic_ns()}"
    temporary = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    process = start_command(
        "bench",
        "light:shufflenet",
        "-d",
        "HETERO:ORT,CPU",
        "-t",
        "60",
        **{mark: "", "TMPDIR": str(temporary)},
    )
    while not any(server in line for line in processes_with(mark)):
        assert process.poll() is None
        time.sleep(0.05)
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.2)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code
    assert not out or "interrupted: these are the figures so far" in out
    assert err.strip().endswith("hetero: interrupted")
    # A second signal may arrive inside a hook of Python, which prints it and continues.
    printed = err.count("Exception ignored in") if len(numbers) > 1 else 0
    assert err.count("Traceback") == printed
    wait_for(lambda: not processes_with(mark))
    assert len(numbers) > 1 or not list(temporary.glob("het-*"))  # the next start sweeps them
    shutil.rmtree(temporary)

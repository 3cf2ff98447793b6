"""What a user does on Ray: by the API on the tests' own Ray, and by commands that start one."""

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
from tests.scheduler.parties import wait_for
from tests.support.command_line import Shell
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
SPLIT = "HETERO:CPU.0,CPU.1"


def test_a_session_in_onnx_runtimes_form_is_split(core: hetero.Core) -> None:
    session = hetero.InferenceSession(
        branches(), devices=SPLIT, affinity={"tanh": "CPU.1"}, core=core
    )
    assert set(session.get_providers()) == {"CPU.0", "CPU.1"}
    want, (output,) = branches_output(X), session.get_outputs()
    np.testing.assert_allclose(session.run(None, {"x": X})[0], want, rtol=1e-6)
    told: list[Any] = []
    session.run_async([output.name], {"x": X}, lambda *said: told.append(said), "mine")
    wait_for(lambda: bool(told))
    ((results, user, error),) = told
    np.testing.assert_allclose(results[0], want, rtol=1e-6)
    assert (user, error) == ("mine", "")
    binding, memory = session.io_binding(), np.zeros_like(want)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output(output.name, hetero.OrtValue.ortvalue_from_numpy(memory))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(memory, want, rtol=1e-6)


def test_a_dropped_model_is_closed_once_its_last_request_is_gone(core: hetero.Core) -> None:
    deployments: Any = core.executor._deployments  # type: ignore[attr-defined]
    # By their keys: what earlier tests left may be closed at any moment.
    before = {deployment.key for deployment in deployments}
    compiled = core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"})
    (key,) = {deployment.key for deployment in deployments} - before
    request = compiled.create_infer_request()
    compiled({"x": X})
    del compiled
    np.testing.assert_allclose(request.infer({"x": X})[0], branches_output(X), rtol=1e-6)
    assert key in {deployment.key for deployment in deployments}
    del request
    wait_for(lambda: key not in {deployment.key for deployment in deployments})


def test_a_fork_leaves_the_devices_to_its_parent(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            for use in (lambda: compiled({"x": X}), lambda: core.compile_model(branches())):
                with pytest.raises(errors.UnsupportedOperationError, match="fork"):
                    use()
            compiled.close()
            core.executor.close()
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_inputs_in_every_form_and_memory_order(core: hetero.Core) -> None:
    wide = np.arange(24, dtype=np.float32).reshape(4, 6) / 9
    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        for inputs in (X, [X], X.tolist(), {"x": X}, {0: X}, {compiled.input(0): X}):
            np.testing.assert_allclose(compiled(inputs)[0], branches_output(X), rtol=1e-6)
        for x in (np.asfortranarray(X), wide[::2, ::2], wide[::-1, 3:], X.astype(">f4")):
            np.testing.assert_allclose(compiled(x)[0], branches_output(x), rtol=1e-6)
        results = compiled(X)
        again = pickle.loads(pickle.dumps(results))
        np.testing.assert_array_equal(again["y"], results["y"])


def test_an_input_may_be_written_to_once_the_request_has_started(core: hetero.Core) -> None:
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
def test_every_element_type_crosses(core: hetero.Core, element: int, values: np.ndarray) -> None:
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


def test_weights_beside_the_model_by_a_relative_path(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save_model(
        branches(), "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    with core.compile_model("model.onnx", SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        monkeypatch.chdir("/")
        np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)


def test_one_compiled_model_called_from_many_threads(core: hetero.Core) -> None:
    wrong: list[object] = []

    def call(i: int) -> None:
        for _ in range(5):
            if not np.allclose(compiled(X * i)[0], branches_output(X * i), 1e-5):
                wrong.append(i)

    with core.compile_model(branches(), SPLIT, affinity={"tanh": "CPU.1"}) as compiled:
        threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_compiled_model_after_its_core_says_so() -> None:
    core = hetero.Core()
    compiled = core.compile_model(branches(), "CPU")
    core.close()
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        compiled(X)
    with pytest.raises(errors.ClusterError, match="closed"):
        compiled.export_model()
    compiled.close()


@pytest.mark.slow
def test_bench_says_what_a_lost_device_cost(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save_model(branches(), path := tmp_path / "branches.onnx")
    monkeypatch.setattr(job, "SLOW_START_S", 0.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    # The 4th run is the 3rd request of one at a time; the device starts anew and counts anew.
    done = shell("bench -d NULL -c NULL_FAULT=die@4 -n 3 -j 1", path, ray=True)
    assert "`hetero pool up`" in done.err
    costs = re.findall(
        r"lost with a device and run again: 1; .* ([\d.]+) s of .* ([\d.]+) s", done.out
    )
    # One request at a time: nothing else ran meanwhile.
    assert [0 < float(longest) <= float(whole) for longest, whole in costs] == [True, True]
    assert "pool up" not in shell("run -d CPU", path).err


def test_options_are_checked_by_the_devices(core: hetero.Core) -> None:
    with pytest.raises(errors.PropertyError, match="NUM_STREAMS='many'"):
        core.set_property("CPU.1", {"NUM_STREAMS": "many"})
    with pytest.raises(errors.PropertyError, match="NUM_STREAMS='many'"):
        core.compile_model(branches(), SPLIT, {"NUM_STREAMS": "many"})
    with core.compile_model(branches(), SPLIT, {"NUM_STREAMS": 9}) as compiled:
        assert compiled(X)


def test_a_device_id_and_a_devices_options_reach_the_device(core: hetero.Core) -> None:
    config = {"DEVICE_ID": "1", "NUM_STREAMS": "2", "PERF_COUNT": "YES"}
    with core.compile_model(branches(), "CPU", config) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU.1"]
        assert compiled.get_property("NUM_STREAMS") == 2
        request = compiled.create_infer_request()
        request.infer(X)
        assert any(row.status == "EXECUTED" for row in request.profiling_info)
    with pytest.raises(errors.UnknownDeviceError, match=r"no device 'CPU\.7'"):
        core.compile_model(branches(), "CPU", {"DEVICE_ID": "7"})


def test_profiled_runs_tell_times_of_every_subgraph(core: hetero.Core) -> None:
    config = {"PERF_COUNT": True}
    with core.compile_model(branches(), SPLIT, config, affinity={"tanh": "CPU.1"}) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        runs = compiled.submit({"x": X}).future.result(60).stage_timings
        nodes = compiled.get_runtime_model().nodes
        subgraphs = len(compiled.subgraphs)
    timed = [n.name for n in nodes if n.metadata["execTimeMcs"] != "not_executed"]
    assert {name.partition(":")[0] for name in timed} == {f"subgraph{i}" for i in range(subgraphs)}
    assert all(0 < run.infer_s <= run.run_s for run in runs)


def without_place(value: Any) -> Any:
    """Leave out of a document where and when it was made."""
    if isinstance(value, dict):
        gone = ("node", "query_s", "command")
        return {key: without_place(item) for key, item in value.items() if key not in gone}
    return [without_place(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "line",
    [
        "devices",
        pytest.param("query MODEL -a op:Tanh=CPU", marks=pytest.mark.slow),
        pytest.param("query MODEL", marks=pytest.mark.slow),
    ],
)
def test_this_machine_alone_answers_as_it_does_through_ray(
    shell: Shell, tmp_path: Path, line: str
) -> None:
    onnx.save_model(branches(), tmp_path / "m.onnx")
    line = line.replace("MODEL", str(tmp_path / "m.onnx"))
    alone, there = shell(f"{line} --json"), shell(f"{line} --json --executor ray", ray=True)
    assert without_place(alone.document) == without_place(there.document)


# Commands that start a Ray of their own.


def command(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "hetero", *arguments],
        cwd=ROOT,
        env=own | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def processes_with(variable: str) -> list[str]:
    """Return the processes that have `variable` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if variable.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " ")[:300])
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("variables", "arguments", "words"),
    [
        ({}, ("--address", "127.0.0.1:1"), "nothing answers at 127.0.0.1:1"),
        ({"RAY_ADDRESS": "nonsense"}, (), "wanted host:port"),
    ],
)
def test_a_ray_that_is_not_there_is_told_at_once(
    variables: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    process = command("run", "light:shufflenet", *arguments, **variables)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out == ""
    assert err.startswith("hetero: ClusterError: ")
    assert words in err
    assert "Traceback" not in err


def test_no_folder_for_ray_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero.scheduler.ray import start as ray_start

    monkeypatch.setattr(ray_start.tempfile, "gettempdir", lambda: "/nowhere")
    with pytest.raises(errors.ClusterError, match="TMPDIR"):
        ray_start._make_folder()


def test_a_working_directory_that_was_removed_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hetero.scheduler.ray import start as ray_start

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(errors.ClusterError, match="needs a working directory"):
        ray_start._make_folder()


def test_ctrl_c_ends_the_wait_and_the_run_and_the_model_goes_on(
    core: hetero.Core, tmp_path: Path
) -> None:
    def interrupt() -> None:
        wait_for(lambda: in_flight(observed) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    observed = Metrics(core.executor.load)
    gate = tmp_path / "open"
    with core.compile_model(branches(), "WAITING", {"WAIT_FILE": str(gate)}) as compiled:
        wait_for(lambda: in_flight(observed) == 0)  # another test's would be taken for this one's
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            compiled({"x": X})
        thread.join()
        wait_for(lambda: in_flight(observed) == 0)
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
def test_interrupted_it_ends_soon_and_leaves_no_process(
    numbers: list[int], code: int, server: str
) -> None:
    """It is interrupted once a process of Ray's is there."""
    mark = f"MARK_{time.monotonic_ns()}"
    temporary = Path(tempfile.mkdtemp(prefix="h", dir="/tmp"))
    process = command(
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
    # A second one may come inside a hook of Python's, which prints it and goes on.
    printed = err.count("Exception ignored in") if len(numbers) > 1 else 0
    assert err.count("Traceback") == printed
    wait_for(lambda: not processes_with(mark))
    assert len(numbers) > 1 or not list(temporary.glob("het-*"))  # the next start sweeps them
    shutil.rmtree(temporary)

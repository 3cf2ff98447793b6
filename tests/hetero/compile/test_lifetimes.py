"""Closed and deleted compiled models release devices, threads and memory."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import numpy as np
import pytest

import hetero
from benchmarks.memory import run
from hetero.comparison.compare import compare
from hetero.devices import errors
from tests.scheduler.endpoints import wait_for
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Generous limit: the awaited events take milliseconds.
TIMEOUT_S = 60


core = core_fixture()


def num_deployments(core: hetero.Core) -> int:
    return len(core.executor._deployments)


def test_closed_model_has_no_deployment(core):
    for _ in range(3):
        with core.compile_model(branches(), "CPU") as compiled:
            compiled({"x": X})
            assert num_deployments(core) == 1
        assert num_deployments(core) == 0


def test_failed_compilation_leaves_no_deployment(core):
    with pytest.raises(errors.HeteroError):
        core.compile_model(branches(), "CPU", {"INFERENCE_NUM_THREADS": -5})
    assert num_deployments(core) == 0


def test_compare_and_profile_leave_no_deployment(core):
    compare(core, branches(), ["CPU", "ORT"], {"x": X}, rtol=0.0, atol=0.0)
    core.profile_model(branches(), "CPU", seconds=0.1)
    assert num_deployments(core) == 0


def use_by_call(compiled: hetero.CompiledModel) -> None:
    compiled({"x": X})


def use_by_failing_call(compiled: hetero.CompiledModel) -> None:
    with pytest.raises(errors.TensorError):
        compiled({"x": "text"})


def use_by_callback(compiled: hetero.CompiledModel) -> None:
    request = compiled.create_infer_request()
    request.set_callback(lambda userdata: None)
    request.start_async({"x": X})
    request.wait()


def use_by_queue(compiled: hetero.CompiledModel) -> None:
    queue = hetero.AsyncInferQueue(compiled, jobs=2)
    queue.set_callback(lambda request, userdata: None)
    for _ in range(4):
        queue.start_async({"x": X})
    queue.wait_all()


def model_threads() -> set[threading.Thread]:
    """Return all threads except those of an executor."""
    executor_threads = ("clock", "stages-")
    return {
        thread for thread in threading.enumerate() if not thread.name.startswith(executor_threads)
    }


@pytest.mark.parametrize(
    "action", [lambda _: None, use_by_call, use_by_failing_call, use_by_callback, use_by_queue]
)
def test_deleted_model_releases_deployment_and_threads(core, action):
    core.compile_model(branches(), "CPU").close()  # importing plugins starts threads
    before = model_threads()
    compiled = core.compile_model(branches(), "HETERO:CPU", {"NUM_STREAMS": 1})
    deployment = weakref.ref(compiled.deployment)
    action(compiled)
    del compiled  # reference counting suffices
    wait_for(lambda: num_deployments(core) == 0)
    wait_for(lambda: model_threads() <= before)

    def is_gone() -> bool:
        gc.collect()  # a closed deployment is a reference cycle
        return deployment() is None

    wait_for(is_gone)


def test_request_and_queue_keep_their_model_alive(core):
    request = core.compile_model(branches(), "CPU").create_infer_request()
    queue = hetero.AsyncInferQueue(core.compile_model(branches(), "CPU"), jobs=1)
    np.testing.assert_allclose(request.infer({"x": X})[0], branches_output(X), rtol=1e-6)
    queue.start_async({"x": X})
    queue.wait_all()
    assert num_deployments(core) == 2
    del request
    wait_for(lambda: num_deployments(core) == 1)
    del queue
    wait_for(lambda: num_deployments(core) == 0)


def test_deleted_request_completes_and_calls_back(core):
    called = threading.Event()
    request = core.compile_model(branches(), "CPU").create_infer_request()
    request.set_callback(lambda userdata: called.set())
    request.start_async({"x": X})
    del request
    assert called.wait(TIMEOUT_S)
    wait_for(lambda: num_deployments(core) == 0)


def test_close_twice_in_any_order():
    core = hetero.Core(executor="inprocess")
    compiled = core.compile_model(branches(), "CPU")
    core.close()
    compiled.close()
    core.close()
    with pytest.raises(errors.RequestCancelledError, match="compile the model again"):
        compiled({"x": X})


def test_core_close_waits_for_model_close(
    monkeypatch,
):
    before = set(threading.enumerate())
    core = hetero.Core(executor="inprocess")
    compiled = core.compile_model(branches(), "CPU")
    closing, may_unload = threading.Event(), threading.Event()
    unload = compiled.deployment._unload

    def unload_slowly() -> None:
        closing.set()
        assert may_unload.wait(TIMEOUT_S)
        unload()

    monkeypatch.setattr(compiled.deployment, "_unload", unload_slowly)
    closers = [threading.Thread(target=target.close) for target in (compiled, core)]
    closers[0].start()
    assert closing.wait(TIMEOUT_S)
    closers[1].start()
    closers[1].join(0.1)
    assert closers[1].is_alive()
    may_unload.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_use_in_forked_process_is_rejected(core):
    compiled = core.compile_model(branches(), "CPU")
    compiled({"x": X})
    messages = []
    for action in (lambda: compiled({"x": X}), lambda: core.compile_model(branches(), "CPU")):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                action()
            except errors.UnsupportedOperationError as error:
                compiled.close()
                core.close()
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            messages.append(pipe.read().decode())
        os.waitpid(child, 0)
    assert all("fork" in text and "Make a Core and compile" in text for text in messages)
    np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("executor", "rounds"),
    [
        ("inprocess", 60),
        pytest.param("ray", 250, marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_compile_and_close_leak_nothing(executor, rounds):
    row = run(executor, rounds)
    assert max(row["threads"], row["fds"], row["object_store_nbytes"]) <= 0
    # Leaking models would cost over 400 kB each, deployments 20 kB.
    assert row["growth_nbytes"] < 10_000

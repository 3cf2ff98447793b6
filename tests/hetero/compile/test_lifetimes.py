"""What a compiled model holds is given back: when it is closed, and when nobody needs it."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import hetero
import hetero.backend
from benchmarks.memory import run
from hetero.comparison.compare import compare
from hetero.devices import errors
from tests.scheduler.parties import wait_for
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Long enough for any machine; what is waited for takes milliseconds.
PATIENCE_S = 60


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess") as core:
        yield core


def num_open(core: hetero.Core) -> int:
    return len(core.executor._deployments)


def test_closed_models_leave_the_executor(core: hetero.Core) -> None:
    for _ in range(3):
        with core.compile_model(branches(), "CPU") as compiled:
            compiled({"x": X})
            assert num_open(core) == 1
        assert num_open(core) == 0


def test_a_model_that_fails_to_compile_leaves_the_executor(core: hetero.Core) -> None:
    with pytest.raises(errors.HeteroError):
        core.compile_model(branches(), "CPU", {"INFERENCE_NUM_THREADS": -5})
    assert num_open(core) == 0


def test_what_compiles_by_itself_leaves_nothing_behind(core: hetero.Core) -> None:
    compare(core, branches(), ["CPU", "ORT"], {"x": X}, rtol=0.0, atol=0.0)
    core.profile_model(branches(), "CPU", seconds=0.1)
    assert num_open(core) == 0
    deployments = hetero.shared_core.shared_core("inprocess").executor._deployments
    before = set(deployments)
    hetero.backend.run_model(branches(), {"x": X}, "CPU")
    assert set(deployments) <= before


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


def threads_of_models() -> set[threading.Thread]:
    """Return all threads but those that an executor has for whatever is deployed on it."""
    own = ("clock", "stages-")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(own)}


@pytest.mark.parametrize(
    "use", [lambda _: None, use_by_call, use_by_failing_call, use_by_callback, use_by_queue]
)
def test_a_dropped_model_gives_everything_back(
    core: hetero.Core, use: Callable[[hetero.CompiledModel], None]
) -> None:
    core.compile_model(branches(), "CPU").close()  # plugins start threads as they are imported
    before = threads_of_models()
    compiled = core.compile_model(branches(), "HETERO:CPU", {"NUM_STREAMS": 1})
    deployment = weakref.ref(compiled.deployment)
    use(compiled)
    del compiled  # the garbage collector has nothing to do with what follows
    wait_for(lambda: num_open(core) == 0)
    wait_for(lambda: threads_of_models() <= before)

    def is_gone() -> bool:
        gc.collect()  # what is closed is a cycle; nothing else may hold it
        return deployment() is None

    wait_for(is_gone)


def test_a_request_or_a_queue_keeps_its_model_alive(core: hetero.Core) -> None:
    request = core.compile_model(branches(), "CPU").create_infer_request()
    queue = hetero.AsyncInferQueue(core.compile_model(branches(), "CPU"), jobs=1)
    np.testing.assert_allclose(request.infer({"x": X})[0], branches_output(X), rtol=1e-6)
    queue.start_async({"x": X})
    queue.wait_all()
    assert num_open(core) == 2
    del request
    wait_for(lambda: num_open(core) == 1)
    del queue
    wait_for(lambda: num_open(core) == 0)


def test_a_dropped_request_runs_to_its_end_and_calls_back(core: hetero.Core) -> None:
    seen = threading.Event()
    request = core.compile_model(branches(), "CPU").create_infer_request()
    request.set_callback(lambda userdata: seen.set())
    request.start_async({"x": X})
    del request
    assert seen.wait(PATIENCE_S)
    wait_for(lambda: num_open(core) == 0)


def test_closing_a_model_or_a_core_twice_in_any_order_is_harmless() -> None:
    core = hetero.Core(executor="inprocess")
    compiled = core.compile_model(branches(), "CPU")
    core.close()
    compiled.close()
    core.close()
    with pytest.raises(errors.RequestCancelledError, match="compile the model again"):
        compiled({"x": X})


def test_a_core_that_is_closed_waits_for_a_model_that_is_being_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    core = hetero.Core(executor="inprocess")
    compiled = core.compile_model(branches(), "CPU")
    closing, go = threading.Event(), threading.Event()
    unload = compiled.deployment._unload

    def slow() -> None:
        closing.set()
        assert go.wait(PATIENCE_S)
        unload()

    monkeypatch.setattr(compiled.deployment, "_unload", slow)
    closers = [threading.Thread(target=target.close) for target in (compiled, core)]
    closers[0].start()
    assert closing.wait(PATIENCE_S)
    closers[1].start()
    closers[1].join(0.1)
    assert closers[1].is_alive()
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_fork_is_told_that_the_devices_stayed_behind(core: hetero.Core) -> None:
    compiled = core.compile_model(branches(), "CPU")
    compiled({"x": X})
    told = []
    for use in (lambda: compiled({"x": X}), lambda: core.compile_model(branches(), "CPU")):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                use()
            except errors.UnsupportedOperationError as error:
                compiled.close()
                core.close()
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told.append(pipe.read().decode())
        os.waitpid(child, 0)
    assert all("fork" in text and "Make a Core and compile" in text for text in told)
    np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("executor", "rounds"),
    [
        ("inprocess", 60),
        pytest.param("ray", 250, marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_rounds_of_compile_run_close_leave_nothing_behind(executor: str, rounds: int) -> None:
    row = run(executor, rounds)
    assert max(row["threads"], row["fds"], row["object_store_nbytes"]) <= 0
    # A lost model each would be over 400 kB, a lost deployment 20 kB.
    assert row["growth_nbytes"] < 10_000

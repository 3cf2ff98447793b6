"""Times and history of requests on one device and on several."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from hetero.devices import errors
from tests.scheduler.endpoints import wait_for
from tests.support.core_fixtures import core_fixture
from tests.support.models import branches
from tests.support.waiting_plugin import WaitingPlugin

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
#: Three subgraphs; the middle one runs on the other device.
CUT = {"op:Tanh": "CPU"}


core = core_fixture("module", plugins=[WaitingPlugin])


def words(history: tuple[str, ...]) -> list[str]:
    """Return the lines of a history without their times."""
    return [line.partition(" ms, ")[2] for line in history]


def test_request_times_add_up(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=CUT) as compiled:
        request = compiled.create_infer_request()
        request.infer(X)
        times = request.times
        parts = (times.preprocess_s, times.admission_s, times.in_flight_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(request.latency / 1000)
        assert [(s.stage, s.device) for s in times.stages] == [
            (s.index, s.device) for s in compiled.subgraphs
        ]
        assert max(s.queued_s + s.run_s for s in times.stages) <= times.in_flight_s
        assert times.postprocess_s > 0


def test_history_names_each_stage(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=CUT) as compiled:
        request = compiled.create_infer_request()
        assert request.story() == ()
        request.infer(X)
        history = request.story()
        first, *stages, last = words(history)
        assert first == "attempt 0: submitted with 24 bytes"
        assert last == "attempt 1: answered"
        assert stages[0] == "attempt 1: started"
        assert [line.split(" started")[0] for line in stages[1:]] == [
            f"attempt 1: stage {s.index} on {s.device}" for s in compiled.subgraphs
        ]
        times_ms = [float(line.partition(" ")[0]) for line in history]
        assert times_ms == sorted(times_ms)
        assert times_ms[0] == 0


def test_admission_wait_is_timed(core, tmp_path):
    gate = tmp_path / "open"
    config = {"MAX_REQUESTS_IN_FLIGHT": 1, "WAIT_FILE": str(gate)}
    with core.compile_model(branches(), "WAITING", config) as compiled:
        first = compiled.submit({"x": X})
        second = compiled.create_infer_request()
        thread = threading.Thread(target=second.infer, args=(X,))
        thread.start()
        wait_for(lambda: len(compiled.story(first.request_id + 1)) >= 2)  # the second request waits
        queued_at_s = time.monotonic()
        time.sleep(0.02)
        minimum_wait_s = time.monotonic() - queued_at_s
        first.cancel()
        gate.touch()
        thread.join(60)
    assert second.times.admission_s >= minimum_wait_s
    assert words(second.story())[1].startswith("attempt 0: waits: 1 of 1 requests")
    assert first.story()[-1].event == "cancelled"


def test_times_need_a_finished_run(core):
    with core.compile_model(branches(), "CPU") as compiled:
        request = compiled.create_infer_request()
        with pytest.raises(errors.RequestNotStartedError, match="times"):
            _ = request.times

"""Lost devices of a server: every request is answered, and readiness is updated."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import hetero
from tests.support.serving import INFER, ask, plus_one, serving, tensor

pytest.importorskip("uvicorn")
BODY = {"inputs": [tensor("x", "FP32", [1.0, 2.0])]}


def test_model_without_devices_is_not_ready(monkeypatch):
    with serving("CPU", plus=plus_one()) as server:
        model = server.service.repository.find("plus")
        assert ask(server, "/v2/models/plus/ready").status == 200
        monkeypatch.setattr(type(model.compiled.deployment), "has_route", False)
        assert ask(server, "/v2/models/plus/ready").status == 503
        assert ask(server, "/v2/health/ready").status == 503
        assert ask(server, "/v2/health/live").status == 200
        [row] = ask(server, "/v2/repository/index", {}).json
        assert row["state"] == "UNAVAILABLE"


@pytest.mark.slow
@pytest.mark.ray
def test_killed_device_loses_no_response():
    pytest.importorskip("ray")
    with hetero.Core("ray", devices={"CPU": 2}) as core:
        compiled = core.compile_model(
            core.read_model(plus_one().SerializeToString()), "HETERO:CPU.0,CPU.1"
        )
        with hetero.serve({"plus": compiled}, 0) as server:
            assert ask(server, INFER, BODY).status == 200
            killed = threading.Event()

            def answered() -> int:
                """Send a request again after 503: on a slow machine both devices may seem lost."""
                while (answer := ask(server, INFER, BODY)).status == 503:
                    time.sleep(int(answer.headers["retry-after"]))
                return answer.status

            def requests(_: int) -> list[int]:
                earlier = [answered() for _ in range(10)]
                assert killed.wait(60)
                return [*earlier, *(answered() for _ in range(30))]

            with ThreadPoolExecutor(4) as pool:
                running = [pool.submit(requests, number) for number in range(4)]
                executor: object = core.executor
                device = executor._devices.device("CPU.0")  # type: ignore[attr-defined]
                os.kill(executor._ask(device, "ping"), signal.SIGKILL)  # type: ignore[attr-defined]
                killed.set()
                statuses = [status for future in running for status in future.result(300)]
            assert statuses == [200] * 160
            assert ask(server, "/v2/health/ready").status == 200

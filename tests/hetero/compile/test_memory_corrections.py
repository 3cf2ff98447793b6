"""Devices that run out of memory although a plan fits are planned around once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest

import hetero
from hetero.devices.errors import DeviceMemoryError, RequestCancelledError
from tests.support.overfull_plugin import OverfullPlugin, SmallPlugin
from tests.support.products import WIDTH, products


class FullPlugin(SmallPlugin):
    """A device without any memory."""

    name: ClassVar[str] = "FULL"
    room_nbytes: ClassVar[int] = 0


class AlwaysOverfullPlugin(OverfullPlugin):
    """A device that runs out of memory with every model."""

    name: ClassVar[str] = "FULL"
    limits_all: ClassVar[bool] = True


def options(device: str) -> dict[str, object]:
    room = 4 * WIDTH * WIDTH * 4 + 2000
    memory = {device: room, "CPU": 1_000_000_000}
    return {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": memory, "VERIFY": "NO"}


def test_model_is_planned_again_with_less_memory():
    with (
        hetero.Core("inprocess", plugins=[SmallPlugin]) as core,
        core.compile_model(products(4), "HETERO:SMALL,CPU", options("SMALL")) as compiled,
    ):
        assert [s.device for s in compiled.subgraphs] == ["SMALL", "CPU"]
        assert compiled.plan_report is not None
        assert any("SMALL ran out of memory at 162 kB" in x for x in compiled.plan_report.advice)
        x = np.arange(WIDTH, dtype=np.float32)[None]
        np.testing.assert_array_equal(compiled({"v0": x})[0], x)


def test_device_that_runs_out_of_memory_twice_is_an_error():
    with (
        hetero.Core("inprocess", plugins=[FullPlugin]) as core,
        pytest.raises(DeviceMemoryError, match="no room") as caught,
    ):
        core.compile_model(products(4), "HETERO:FULL,CPU", options("FULL"))
    assert caught.value.data["device"] == "FULL"


def test_model_closed_during_recovery_stays_closed(monkeypatch):
    x, deployments = np.zeros((1, WIDTH), np.float32), []
    with hetero.Core("inprocess", plugins=[OverfullPlugin]) as core:
        compiled = core.compile_model(products(4), "HETERO:OVERFULL,CPU", options("OVERFULL"))
        recovery = compiled.target.recovery
        plan_again = recovery._plan_again

        def plan_and_close(error):
            deploy = plan_again(error)

            def deploy_and_close():
                deployments.append(deploy())
                compiled.close()
                return deployments[0]

            return deploy_and_close

        monkeypatch.setattr(recovery, "_plan_again", plan_and_close)
        for _ in range(2):
            with pytest.raises(hetero.HeteroError, match="closed"):
                compiled({"v0": x})
        assert [deployment.is_closed for deployment in deployments] == [True]


def test_exhausted_device_is_replaced_by_another_plan(caplog):
    x = np.arange(WIDTH, dtype=np.float32)[None]
    with (
        hetero.Core("inprocess", plugins=[OverfullPlugin]) as core,
        core.compile_model(products(4), "HETERO:OVERFULL,CPU", options("OVERFULL")) as compiled,
    ):
        assert [s.device for s in compiled.subgraphs] == ["OVERFULL"]
        old_deployment = compiled.deployment
        with ThreadPoolExecutor(4) as pool:
            for result in pool.map(lambda _: compiled({"v0": x})[0], range(4)):
                np.testing.assert_array_equal(result, x)
        assert [s.device for s in compiled.subgraphs] == ["OVERFULL", "CPU"]
        assert old_deployment.is_closed
        assert compiled.plan_report is not None
        expected = "OVERFULL ran out of memory at 162 kB, although its budget is 162 kB"
        assert any(expected in sentence for sentence in compiled.plan_report.advice)
        np.testing.assert_array_equal(compiled({"v0": x})[0], x)
        request = compiled.create_infer_request()
        request.start_async({"v0": x})
        request.wait()
        np.testing.assert_array_equal(request.results[0], x)
    assert caplog.text.count("ran out of memory at") == 1


def test_device_that_exhausts_every_plan_is_an_error():
    x = np.zeros((1, WIDTH), np.float32)
    with (
        hetero.Core("inprocess", plugins=[AlwaysOverfullPlugin]) as core,
        core.compile_model(products(4), "HETERO:FULL,CPU", options("FULL")) as compiled,
    ):
        for _ in range(2):  # the second request finds the device already planned around
            with pytest.raises(DeviceMemoryError, match="no room for values"):
                compiled({"v0": x})


def test_request_without_another_plan_gets_the_error():
    x = np.zeros((1, WIDTH), np.float32)
    memory = {"OVERFULL": 200_000}
    for config in (options("OVERFULL") | {"DEVICE_MEMORY_NBYTES": memory}, {"VERIFY": "NO"}):
        with (
            hetero.Core("inprocess", plugins=[OverfullPlugin]) as core,
            core.compile_model(products(4), "OVERFULL", config) as compiled,
        ):
            deployment = compiled.deployment
            for _ in range(2):
                with pytest.raises(DeviceMemoryError, match="no room for values"):
                    compiled({"v0": x})
            assert compiled.deployment is deployment


@pytest.mark.parametrize("stage", ["planning", "loading", "running"])
def test_request_cancelled_during_recovery_is_cancelled(monkeypatch, stage):
    """The request ends as cancelled, and the model runs on the other plan."""
    x = np.arange(WIDTH, dtype=np.float32)[None]
    with (
        hetero.Core("inprocess", plugins=[OverfullPlugin]) as core,
        core.compile_model(products(4), "HETERO:OVERFULL,CPU", options("OVERFULL")) as compiled,
    ):
        recovery = compiled.target.recovery
        plan_again = recovery._plan_again
        request = compiled.create_infer_request()

        def plan_and_cancel(error):
            if stage == "planning":
                request.cancel()
            deploy = plan_again(error)

            def deploy_and_cancel():
                deployment = deploy()
                if stage == "loading":
                    request.cancel()
                elif stage == "running":
                    submit = deployment.submit
                    # The request runs until it is cancelled, because its inputs are never sent.
                    monkeypatch.setattr(deployment, "start", lambda *arguments: None)

                    def submit_and_cancel(*arguments, **options):
                        submission = submit(*arguments, **options)
                        request.cancel()
                        return submission

                    monkeypatch.setattr(deployment, "submit", submit_and_cancel)
                return deployment

            return deploy_and_cancel

        monkeypatch.setattr(recovery, "_plan_again", plan_and_cancel)
        request.start_async({"v0": x})
        with pytest.raises(RequestCancelledError):
            request.wait()
        monkeypatch.undo()
        np.testing.assert_array_equal(compiled({"v0": x})[0], x)
        assert [s.device for s in compiled.subgraphs] == ["OVERFULL", "CPU"]

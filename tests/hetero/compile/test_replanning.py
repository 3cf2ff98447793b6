"""Deployments and their plans after the loss of devices, on an executor that records calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from hetero.compile.compiler import Compiler
from hetero.devices.errors import DeviceError, UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.model.variables import with_states
from hetero.devices.plugin.support import Refusal, Support
from hetero.partition.partition import stage_sources
from hetero.planning.cost_planner import CostPlanner
from hetero.properties.compile_request import CompileRequest
from hetero.query.query_cache import QueryCache
from hetero.scheduler.executor import ReplannedModel
from hetero.scheduler.types.limits import Limits
from tests.support.compile_requests import compile_request, descriptor
from tests.support.graphs import build

#: Node -> operators that a device does not support.
UNSUPPORTED = {"Y.0": ("Add",)}
MODEL = build("a: v = Add(x, c)\nb: w = Neg(v)\nd: y = Abs(w)", outputs="y", constants="c")
STATEFUL = with_states(
    build("a: n = Add(x, s)\nb: w = Neg(n)\nd: y = Abs(w)", inputs="x s", outputs="y n"),
    {"s": "n"},
)


class RecordingExecutor:
    """Executor that lists some devices and keeps the arguments of its last deployment."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.started: list[set[str]] = []
        self.placement: Any = None
        self.sources: Any = None
        self.options: dict[str, Any] = {}

    def start(self, names: Collection[str]) -> None:
        self.started.append(set(names))

    def devices(self, *, wait: bool) -> list[Any]:
        assert wait is False  # a lost device would not answer
        return [SimpleNamespace(name=name) for name in self.names]

    def deploy(self, placement: Any, sources: Any, constants: Any, **options: Any) -> Any:
        self.placement, self.sources, self.options = placement, sources, options
        return "deployment"

    def replan(self, *lost: str) -> ReplannedModel:
        replan: Callable[[Collection[str]], ReplannedModel] = self.options["replan"]
        return replan(lost)


def support(device: str, model: Model, config: Any) -> Support:
    nodes = [n for n in model.nodes if n.op_type not in UNSUPPORTED.get(device, ())]
    refusals = {
        n.name: {device: Refusal("no_kernel", "no kernel")} for n in model.nodes if n not in nodes
    }
    return Support({n.name: device for n in nodes}, refusals, refusals)


def deploy(
    request: CompileRequest,
    *listed: str,
    model: Model = MODEL,
    known: dict[str, dict[str, Refusal]] | None = None,
) -> RecordingExecutor:
    """Deploy a model by priority; `listed` are the executor's devices."""
    executor: Any = RecordingExecutor(*(listed or request.devices))
    verifier: Any = SimpleNamespace(refusals=lambda model, request, cache: known or {})
    queries = QueryCache(support)
    planner = CostPlanner(lambda: executor, queries)
    compiler = Compiler(lambda: executor, queries, planner, verifier)
    placements = compiler.place(model, request, {})
    sources = stage_sources([p.partition for p in placements], request.configs)
    assert compiler.deploy(placements, sources, request) == "deployment"  # type: ignore[comparison-overlap]
    recorded: RecordingExecutor = executor
    return recorded


def devices_of(result: Any) -> list[str]:
    return [stage.device for stage in result.placement.stages]


def test_deployment_takes_the_limits_of_the_request():
    executor = deploy(compile_request("X.0", REQUEST_TIMEOUT_S=7.0))
    limits = executor.options["limits"]
    assert (limits.timeout_s, limits.requests, limits.batching) == (7.0, Limits().requests, None)
    assert executor.options["stateful"] is False
    assert [source.model.node_names for source in executor.sources] == [("a", "b", "d")]
    fixed = deploy(compile_request("X.0", MAX_REQUESTS_IN_FLIGHT=3))
    assert fixed.options["limits"].requests == 3
    streams = deploy(compile_request("X.0", configs={"X.0": {"NUM_STREAMS": 50}}))
    assert streams.options["limits"].requests == 50 + 1


def test_priority_starts_devices_when_they_are_queried():
    assert deploy(compile_request("X.0", "X.1")).started == [set()]


def test_lost_device_is_replaced_by_priority():
    executor = deploy(compile_request("X.0", "Y.0", "X.1"))
    assert devices_of(executor) == ["X.0"]
    result = executor.replan("X.0")
    assert devices_of(result) == ["X.1", "Y.0"]  # Y.0 does not support `a`
    assert [source.model.node_names for source in result.sources] == [("a",), ("b", "d")]
    assert devices_of(executor.replan("Y.0")) == ["X.0"]


def test_device_missing_from_the_executor_is_lost():
    executor = deploy(compile_request("X.0", "X.1", "X.2"), "X.0", "X.2")
    assert devices_of(executor.replan("X.0")) == ["X.2"]
    with pytest.raises(DeviceError, match=r"lost devices: X\.0, X\.1, X\.2\."):
        executor.replan("X.0", "X.2")


def test_stages_with_states_move_alone():
    request = compile_request("X.0", "Z.0", "X.1")
    UNSUPPORTED["X.0"] = UNSUPPORTED["X.1"] = ("Neg",)
    try:
        executor = deploy(request, model=STATEFUL)
        assert devices_of(executor) == ["X.0", "Z.0", "X.0"]
        assert executor.options["stateful"] is True
        assert devices_of(executor.replan("X.0")) == ["X.1", "Z.0", "X.1"]
    finally:
        del UNSUPPORTED["X.0"], UNSUPPORTED["X.1"]


def test_model_with_states_is_replanned_if_stages_cannot_move():
    executor = deploy(compile_request("X.0", "Z.0"), model=STATEFUL)
    assert devices_of(executor) == ["X.0"]
    assert devices_of(executor.replan("X.0")) == ["Z.0"]
    full = compile_request("X.0", descriptor("X.1", memory_nbytes=0), "Z.0")
    with_weights = with_states(
        build(
            "a: n = Add(x, s)\nb: w = Add(n, c)\nd: y = Abs(w)",
            inputs="x s",
            outputs="y n",
            constants="c",
        ),
        {"s": "n"},
    )
    executor = deploy(full, model=with_weights)
    assert devices_of(executor.replan("X.0")) == ["X.1"]  # by priority, memory does not count


def test_nodes_that_verification_found_wrong_are_avoided_if_possible():
    wrong = Refusal("wrong_result", "differs")
    request = compile_request("X.0", "X.1", "X.2")
    executor = deploy(request, known={"X.1": {"b": wrong}})
    assert devices_of(executor.replan("X.0")) == ["X.1", "X.2", "X.1"]
    executor = deploy(request, known={"X.1": {"b": wrong}, "X.2": {"b": wrong}})
    assert devices_of(executor.replan("X.0")) == ["X.1"]
    executor = deploy(compile_request("X.0", "Y.0"))
    with pytest.raises(UnsupportedNodesError):
        executor.replan("X.0")

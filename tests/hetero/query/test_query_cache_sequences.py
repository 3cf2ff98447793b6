"""Sequences of calls of the query cache, compared with a dictionary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hetero.devices.errors import DeviceError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.query.query_cache import QueryCache
from tests.scheduler.endpoints import wait_for
from tests.support.compile_requests import compile_request
from tests.support.graphs import build

DEVICES = st.sampled_from(["X.0", "X.1"])
#: Options, and a name for those that are equal regardless of their order.
CONFIGS = st.sampled_from(
    [
        ((), "none"),
        ((("A", 1),), "A"),
        ((("A", 1), ("B", 2)), "AB"),
        ((("B", 2), ("A", 1)), "AB"),
        ((("A", "1"),), "text"),
    ]
)
MODELS = st.integers(0, 1)


class QueryCacheCalls(RuleBasedStateMachine):
    """Calls with results and errors; the expected results are those of the first query."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[tuple[str, int, str]] = []
        self.results: dict[tuple[str, int, str], Support] = {}
        self.models = [build("n: y = Neg(x)", outputs="y") for _ in range(2)]
        self.error: BaseException | None = None
        self.cache = QueryCache(self.query)

    def query(self, device: str, model: Model, config: Any) -> Support:
        name = {"[]": "none", "[('A', 1)]": "A", "[('A', '1')]": "text"}
        key = (device, self.models.index(model), name.get(repr(sorted(config.items())), "AB"))
        self.queries.append(key)
        if self.error is not None:
            raise self.error
        return Support({"n": f"{key} {len(self.queries)}"})

    @rule(device=DEVICES, model=MODELS, config=CONFIGS)
    def support(self, device: str, model: int, config: Any) -> None:
        options, name = dict(config[0]), config[1]
        number = len(self.queries)
        result = self.cache.support(device, self.models[model], options)
        key = (device, model, name)
        assert self.queries[number:] == ([] if key in self.results else [key])
        assert self.results.setdefault(key, result) is result

    @rule(
        device=DEVICES,
        model=MODELS,
        config=CONFIGS,
        error=st.sampled_from([DeviceError("lost"), KeyboardInterrupt()]),
    )
    def fail(self, device: str, model: int, config: Any, error: BaseException) -> None:
        self.error = error
        key, number = (device, model, config[1]), len(self.queries)
        try:
            if key in self.results:
                result = self.cache.support(device, self.models[model], dict(config[0]))
                assert result is self.results[key]
                assert len(self.queries) == number
            else:
                with pytest.raises(type(error)):
                    self.cache.support(device, self.models[model], dict(config[0]))
                assert self.queries[number:] == [key]
        finally:
            self.error = None

    @precondition(lambda self: self.results)
    @rule(model=MODELS)
    def forget_model(self, model: int) -> None:
        self.models[model] = build("n: y = Neg(x)", outputs="y")
        self.results = {key: s for key, s in self.results.items() if key[1] != model}

    @invariant()
    def timed_results_are_the_same(self) -> None:
        for (device, model, name), result in self.results.items():
            if name == "none":
                support, seconds = self.cache.query_with_seconds(device, self.models[model], {})
                assert support is result
                assert seconds >= 0


TestQueryCacheCalls = QueryCacheCalls.TestCase
TestQueryCacheCalls.settings = settings(max_examples=25, stateful_step_count=12)


@pytest.mark.parametrize("error", [DeviceError("lost"), KeyboardInterrupt()])
def test_waiting_thread_gets_errors_but_no_interrupt(error):
    model = build("n: y = Neg(x)", outputs="y")
    others = []

    def query(device: str, queried_model: Model, config: Any) -> Support:
        if others:
            return Support({"n": "second query"})
        others.append(pool.submit(cache.support, device, model, config))
        (pending,) = cache._results[model].values()
        wait_for(lambda: pending._condition._waiters)  # the other thread waits for this query
        raise error

    cache = QueryCache(query)
    with ThreadPoolExecutor(1) as pool, pytest.raises(type(error)):
        cache.support("X.0", model, {})
    if isinstance(error, DeviceError):
        assert others[0].exception() is error
    else:
        assert dict(others[0].result()) == {"n": "second query"}


def test_querier_uses_the_options_of_each_device():
    configs: list[Any] = []

    def query(device: str, model: Model, config: Any) -> Support:
        configs.append((device, config))
        return Support({})

    model = build("n: y = Neg(x)", outputs="y")
    request = compile_request("X.0", "X.1", configs={"X.0": {"A": 1}, "X.1": {"A": 2}})
    querier = QueryCache(query).querier(request)
    for device in ("X.0", "X.1", "X.0"):
        querier(device, model)
    assert configs == [("X.0", {"A": 1}), ("X.1", {"A": 2})]


def test_replicas_of_a_device_support_what_all_support():
    """The refusals of a replica count for the device; its reason is the first of these."""
    reasons = {name: Refusal("policy", name) for name in ("own", "b", "c")}
    supports = {
        "X.0": Support(
            dict.fromkeys("abce", "X.0"),
            {"d": {"X.0": reasons["own"]}},
            {"d": {"X.0": reasons["own"]}},
            {"a": "note"},
        ),
        "X.1": Support(dict.fromkeys("acde", "X.1"), {"b": {"X.1": reasons["b"]}}, {}),
        "X.2": Support(dict.fromkeys("ab", "X.2"), {}, {"c": {"X.2": reasons["c"]}}),
    }
    request = replace(compile_request("X.0", "X.1", "X.2"), replicas={"X.0": ("X.1", "X.2")})
    querier = QueryCache(lambda device, model, config: supports[device]).querier(request)
    support = querier("X.0", build("n: y = Neg(x)", outputs="y"))
    assert dict(support) == {"a": "X.0"}
    default = Refusal("policy", "its replica refuses it")
    refused = {"d": reasons["own"], "b": reasons["b"], "c": reasons["c"], "e": default}
    expected = {node: {"X.0": reason} for node, reason in refused.items()}
    assert support.unsupported == support.refusals == expected
    assert support.notes == {"a": "note"}


def test_timed_measures_the_query_alone(monkeypatch):
    times = iter([10.0, 12.5])
    monkeypatch.setattr("hetero.query.query_cache.time.perf_counter", lambda: next(times))
    cache = QueryCache(lambda *arguments: Support({}))
    model = build("n: y = Neg(x)", outputs="y")
    assert cache.query_with_seconds("X.0", model, {}) == (Support({}), 2.5)
    assert cache.query_with_seconds("X.0", model, {}) == (Support({}), 2.5)

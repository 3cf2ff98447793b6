"""Query cache: one query per device and model, also with concurrent callers and errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero.devices.errors import DeviceError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.query.priority import query_priority
from hetero.query.query_cache import QueryCache
from tests.support.graphs import build


@pytest.fixture
def model():
    return build("n1: a = Add(x, x)\n n2: b = Abs(a)\n n3: y = Add(b, b)", outputs="y")


def test_query_cache_reuses_results_of_submodels(model):
    queried_devices = []

    def query(device: str, submodel: Model, config: object) -> Support:
        queried_devices.append(device)
        op_type = {"ORT": "Add", "CPU": "Abs"}[device]
        return Support({n.name: device for n in submodel.nodes if n.op_type == op_type})

    cache = QueryCache(query)

    def cached_query(device: str, submodel: Model) -> Support:
        return cache.support(device, submodel, {})

    first = query_priority(model, ["ORT", "CPU"], cached_query)
    assert dict(first) == {"n1": "ORT", "n2": "CPU", "n3": "ORT"}
    assert query_priority(model, ["ORT", "CPU"], cached_query) == first
    assert queried_devices == ["ORT", "CPU"]


def test_query_cache_concurrent_callers_share_one_query(model):
    support, entered, finish = Support({}, {}), threading.Semaphore(0), threading.Event()
    queried_devices = []

    def query(device: str, submodel: Model, config: object) -> Support:
        queried_devices.append(device)
        entered.release()
        assert finish.wait(60)
        return support

    cache = QueryCache(query)
    with ThreadPoolExecutor(3) as pool:
        results = [pool.submit(cache.support, "CPU", model, {}) for _ in range(3)]
        assert entered.acquire(timeout=60)
        finish.set()
        assert [result.result(60) for result in results] == [support] * 3
    assert queried_devices == ["CPU"]


def test_query_cache_retries_after_errors(model):
    support = Support({}, {})
    outcomes = iter([KeyboardInterrupt(), DeviceError("lost"), support])

    def query(device: str, submodel: Model, config: object) -> Support:
        outcome = next(outcomes)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    cache = QueryCache(query)
    for error in (KeyboardInterrupt, DeviceError):
        with pytest.raises(error):
            cache.support("CPU", model, {})
    assert cache.support("CPU", model, {}) is support

"""Device numbers: all clients assign the same ones, concurrently and with few calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from hetero.scheduler.ray import nodes
from hetero.scheduler.ray.nodes import ClusterNode, DeviceNumbers


class Store:
    """A key-value store that counts calls and lets other clients run between them."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.calls = 0
        #: Called before each result is returned.
        self.interleave: Callable[[], None] = lambda: None

    def _count_call(self) -> None:
        self.calls += 1
        interleave, self.interleave = self.interleave, lambda: None
        interleave()
        self.interleave = interleave

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        self._count_call()
        exists = key in self.values
        if overwrite or not exists:
            self.values[key] = value
        return exists

    def get(self, key: bytes) -> bytes | None:
        self._count_call()
        return self.values.get(key)

    def keys(self, prefix: str) -> list[bytes]:
        self._count_call()
        return [key for key in self.values if key.startswith(prefix.encode())]

    def delete(self, key: bytes) -> None:
        self._count_call()
        self.values.pop(key, None)


@pytest.fixture
def store(monkeypatch):
    store = Store()
    monkeypatch.setattr(nodes, "_STORE", store)
    return store


def node(number: int, host: str = "") -> ClusterNode:
    return ClusterNode(f"id{number}", "", host or f"host{number}", "", {}, 1, {})


def test_returned_node_gets_its_numbers_back(store):
    numbers = DeviceNumbers()
    assert numbers.assign("CPU*", node(1), 2, {"id1"}) == [0, 1]
    assert numbers.assign("CPU*", node(2), 1, {"id1", "id2"}) == [2]
    assert numbers.assign("CPU*2", node(2), 1, {"id1", "id2"}) == [0]  # counted separately
    assert numbers.assign("CPU*", node(3, "host1"), 3, {"id2", "id3"}) == [0, 1, 3]
    assert DeviceNumbers().assign("CPU*", node(2), 1, {"id2", "id3"}) == [2]
    assert DeviceNumbers().assign("CPU*", node(4, "host2"), 1, {"id2", "id4"}) == [4]


@pytest.mark.parametrize("seed", range(20))
def test_concurrent_clients_assign_equal_numbers(store, seed):
    rng = random.Random(seed)
    alive = {f"id{i}" for i in range(6)}
    clients = [DeviceNumbers() for _ in range(3)]
    assigned: list[dict[int, list[int]]] = [{} for _ in clients]
    depth = 0

    def run_other_client() -> None:
        nonlocal depth
        if depth < 3 and rng.random() < 0.3:
            depth += 1
            assign(rng.randrange(3), rng.randrange(6))
            depth -= 1

    def assign(client: int, number: int) -> None:
        numbers = DeviceNumbers() if depth else clients[client]
        assigned[client][number] = numbers.assign("CPU*", node(number), 3, alive)

    def run_and_repeat() -> None:
        store.interleave = run_and_repeat
        run_other_client()

    store.interleave = run_and_repeat
    for client in range(3):
        for number in range(6):
            assign(client, number)
    assert assigned[0] == assigned[1] == assigned[2]
    counts = Counter(number for numbers in assigned[0].values() for number in numbers)
    assert counts == dict.fromkeys(range(18), 1)


def test_client_reads_a_large_table_once(store):
    alive = {f"id{i}" for i in range(100)}
    first = DeviceNumbers()
    for number in range(100):
        first.assign("CPU*", node(number), 10, alive)
    assert store.calls <= 6 * 100
    assert len(store.values) <= 3
    store.calls = 0
    second = DeviceNumbers()
    first_numbers = [second.assign("CPU*", node(i), 10, alive)[0] for i in range(100)]
    assert first_numbers == [*range(0, 1000, 10)]
    assert store.calls == 2

"""Numbers of devices: the same for all clients, however many ask at once, and in few calls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from hetero.scheduler.ray import nodes
from hetero.scheduler.ray.nodes import ClusterNode, DeviceNumbers


class Store:
    """The cluster's store: what clients ask of it, and what they do in between."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.calls = 0
        #: Called before each answer.
        self.between: Callable[[], None] = lambda: None

    def _answer(self) -> None:
        self.calls += 1
        between, self.between = self.between, lambda: None
        between()
        self.between = between

    def put(self, key: bytes, value: bytes, *, overwrite: bool = True) -> bool:
        self._answer()
        known = key in self.held
        if overwrite or not known:
            self.held[key] = value
        return known

    def get(self, key: bytes) -> bytes | None:
        self._answer()
        return self.held.get(key)

    def keys(self, prefix: str) -> list[bytes]:
        self._answer()
        return [key for key in self.held if key.startswith(prefix.encode())]

    def delete(self, key: bytes) -> None:
        self._answer()
        self.held.pop(key, None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(nodes, "_STORE", made)
    return made


def node(number: int, host: str = "") -> ClusterNode:
    return ClusterNode(f"id{number}", "", host or f"host{number}", "", {}, 1, {})


def test_a_node_that_comes_back_has_its_numbers_again(store: Store) -> None:
    numbers = DeviceNumbers()
    assert numbers.take("CPU*", node(1), 2, {"id1"}) == [0, 1]
    assert numbers.take("CPU*", node(2), 1, {"id1", "id2"}) == [2]
    assert numbers.take("CPU*2", node(2), 1, {"id1", "id2"}) == [0]  # others want other devices
    assert numbers.take("CPU*", node(3, "host1"), 3, {"id2", "id3"}) == [0, 1, 3]
    assert DeviceNumbers().take("CPU*", node(2), 1, {"id2", "id3"}) == [2]
    assert DeviceNumbers().take("CPU*", node(4, "host2"), 1, {"id2", "id4"}) == [4]


@pytest.mark.parametrize("seed", range(20))
def test_clients_that_ask_at_once_agree(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    alive = {f"id{i}" for i in range(6)}
    clients = [DeviceNumbers() for _ in range(3)]
    said: list[dict[int, list[int]]] = [{} for _ in clients]
    depth = 0

    def somebody_else() -> None:
        nonlocal depth
        if depth < 3 and rng.random() < 0.3:
            depth += 1
            ask(rng.randrange(3), rng.randrange(6))
            depth -= 1

    def ask(client: int, number: int) -> None:
        found = DeviceNumbers() if depth else clients[client]
        said[client][number] = found.take("CPU*", node(number), 3, alive)

    def answer() -> None:
        store.between = answer
        somebody_else()

    store.between = answer
    for client in range(3):
        for number in range(6):
            ask(client, number)
    assert said[0] == said[1] == said[2]
    counts = Counter(number for found in said[0].values() for number in found)
    assert counts == dict.fromkeys(range(18), 1)


def test_a_client_reads_the_table_of_a_thousand_devices_once(store: Store) -> None:
    alive = {f"id{i}" for i in range(100)}
    first = DeviceNumbers()
    for number in range(100):
        first.take("CPU*", node(number), 10, alive)
    assert store.calls <= 6 * 100
    assert len(store.held) <= 3
    store.calls = 0
    later = DeviceNumbers()
    assert [later.take("CPU*", node(i), 10, alive)[0] for i in range(100)] == [*range(0, 1000, 10)]
    assert store.calls == 2

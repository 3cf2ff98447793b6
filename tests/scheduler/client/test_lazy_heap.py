"""Heap with lazy deletion: order, stale entries, and its size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero.scheduler.client.lazy_heap import LazyHeap


@given(st.lists(st.tuples(st.sampled_from(["push", "expire", "pop"]), st.integers(0, 200))))
def test_first_is_the_least_current_entry(steps):
    stale, current = set[int](), list[int]()
    heap = LazyHeap[tuple[int]](lambda entry: entry[0] not in stale)
    for kind, number in steps:
        if kind == "push" and number not in stale:
            heap.push((number,))
            current.append(number)
        elif kind == "expire":
            stale.add(number)
            current = [one for one in current if one != number]
        elif kind == "pop" and heap.first() is not None:
            heap.pop()
            current.remove(min(current))
        assert heap.first() == ((min(current),) if current else None)


def test_stale_entries_do_not_accumulate():
    current = set(range(50))
    heap = LazyHeap[tuple[int]](lambda entry: entry[0] in current)
    sizes = []
    for number in range(1000):
        heap.push((number,))
        sizes.append(len(heap.entries))
    # A sweep at 64 entries; with 50 current ones, the next sweep is at 100.
    assert max(sizes) == 99
    assert {entry for (entry,) in heap.entries} >= current

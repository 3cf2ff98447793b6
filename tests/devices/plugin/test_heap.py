"""Release of heap memory: what a compilation has freed leaves the process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetero.devices.plugin import heap
from hetero.devices.plugin.heap import releases_free_memory


@pytest.mark.parametrize(("growth_nbytes", "calls"), [(1_000_000, []), (3_000_000, [0])])
def test_memory_is_released_if_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch, growth_nbytes: int, calls: list[int]
) -> None:
    trims: list[int] = []

    class Library:
        malloc_trim: Callable[[int], None] = staticmethod(trims.append)

    sizes = iter([50_000_000, 50_000_000 + growth_nbytes])
    monkeypatch.setattr(heap, "_resident_nbytes", lambda: next(sizes))
    monkeypatch.setattr("ctypes.CDLL", lambda _: Library())
    with releases_free_memory():
        pass
    assert trims == calls

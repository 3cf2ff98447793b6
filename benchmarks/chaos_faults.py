"""Faults of a cluster, at random: actors killed and stopped, nodes removed and added."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from ray.cluster_utils import Cluster

from benchmarks.processes import device_processes

#: What happens, and how often in proportion.
KINDS: Final = {"kill": 4, "stop": 3, "remove": 2, "add": 1}
#: Seconds between faults, and until a stopped actor goes on or a node is back.
_BETWEEN_S: Final = (2.0, 5.0)
_UNTIL_MENDED_S: Final = (1.0, 6.0)
#: What is broken at once, at most.
_MOST_OPEN: Final = 2


class Faults:
    """What is done to a cluster, the same things in the same order for a seed.

    Nodes that are removed come back under their own names, and all is mended in the end.

    `kinds`: of `KINDS`.
    `options`: of nodes that are added.
    """

    def __init__(
        self,
        cluster: Cluster,
        nodes: dict[str, Any],
        seed: int,
        kinds: Sequence[str],
        **options: Any,
    ) -> None:
        self._cluster = cluster
        self._kinds = kinds
        #: Name -> node, but for the head's; None for one that is away.
        self._nodes: dict[str, Any] = dict(nodes)
        self._options = options
        self._random = random.Random(seed)
        self._mendings: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        #: Processes that are stopped.
        self._still: set[int] = set()
        #: What was done, and when.
        self.done: list[tuple[float, str]] = []

    def run(self, seconds: float) -> None:
        """Do things for so long, then mend all; a main thread must: Ray starts nodes only there."""
        next_s = time.monotonic() + 1
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            while self._mendings and self._mendings[0][0] <= now_s:
                heapq.heappop(self._mendings)[2]()
            if now_s >= next_s and len(self._mendings) < _MOST_OPEN:
                self._break()
                next_s = time.monotonic() + self._random.uniform(*_BETWEEN_S)
            time.sleep(0.1)
        for _, _, mend in sorted(self._mendings):
            mend()

    def _break(self) -> None:
        kinds = {
            "kill": self._kill_actor,
            "stop": self._stop_actor,
            "remove": self._remove_node,
            "add": self._add_new_node,
        }
        kind = self._random.choices(self._kinds, [KINDS[kind] for kind in self._kinds])[0]
        begun_s = time.monotonic()
        try:
            happened = kinds[kind]()
        except Exception as error:  # a node may be on its way: then this was no fault
            sys.stderr.write(f"fault {kind}: {type(error).__name__}: {error}\n")
            return
        if happened:
            self.done.append((begun_s, kind))

    def _kill_actor(self) -> bool:
        pid = self._device()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def _stop_actor(self) -> bool:
        pid = self._device()
        if pid is None:
            return False
        os.kill(pid, signal.SIGSTOP)
        self._still.add(pid)
        self._mend_later(lambda: self._continue(pid))
        return True

    def _continue(self, pid: int) -> None:
        self._still.discard(pid)
        os.kill(pid, signal.SIGCONT)

    def _device(self) -> int | None:
        """Return the process of a device that is not stopped already."""
        found = [pid for pid in device_processes() if pid not in self._still]
        return self._random.choice(found) if found else None

    def _remove_node(self) -> bool:
        there = [name for name, node in self._nodes.items() if node is not None]
        if not there:
            return False
        name = self._random.choice(there)
        node, self._nodes[name] = self._nodes[name], None
        self._mend_later(lambda: self._add(name))
        self._cluster.remove_node(node, allow_graceful=False)
        return True

    def _add_new_node(self) -> bool:
        """Add a node for a while; its leaving is a fault of its own."""
        name = f"guest{next(self._order)}"
        node = self._cluster.add_node(node_name=name, **self._options)

        def leave() -> None:
            self.done.append((time.monotonic(), "leave"))
            self._cluster.remove_node(node, allow_graceful=False)

        self._mend_later(leave)
        return True

    def _add(self, name: str) -> None:
        self._nodes[name] = self._cluster.add_node(node_name=name, **self._options)

    def _mend_later(self, mend: Callable[[], None]) -> None:
        def quietly() -> None:
            try:
                mend()
            except ProcessLookupError:  # it was killed meanwhile
                pass
            except Exception as error:
                sys.stderr.write(f"mending: {type(error).__name__}: {error}\n")

        at_s = time.monotonic() + self._random.uniform(*_UNTIL_MENDED_S)
        heapq.heappush(self._mendings, (at_s, next(self._order), quietly))

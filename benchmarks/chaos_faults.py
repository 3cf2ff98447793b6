"""Random faults of a cluster: actors killed and stopped, nodes removed and added."""

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

#: Kinds of faults with their relative frequencies.
KINDS: Final = {"kill": 4, "stop": 3, "remove": 2, "add": 1}
#: Seconds between faults, and until a stopped actor continues or a node returns.
_BETWEEN_S: Final = (2.0, 5.0)
_UNTIL_MENDED_S: Final = (1.0, 6.0)
#: Most faults at the same time.
_MOST_OPEN: Final = 2


class Faults:
    """Sequence of faults of a cluster, determined by a seed.

    Removed nodes return under their own names, and at the end every fault is repaired.

    `kinds`: keys of `KINDS`.
    `options`: options of new nodes.
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
        #: Name -> node, except the head; None while the node is removed.
        self._nodes: dict[str, Any] = dict(nodes)
        self._options = options
        self._random = random.Random(seed)
        self._mendings: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        #: Processes that are stopped now.
        self._still: set[int] = set()
        #: Times and kinds of past faults.
        self.done: list[tuple[float, str]] = []

    def run(self, seconds: float) -> None:
        """Cause faults for this time, then repair all; Ray requires the main thread."""
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
        except Exception as error:  # a node may be starting; then this is not counted as a fault
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
        """Return the process of a device that is not stopped."""
        running = [pid for pid in device_processes() if pid not in self._still]
        return self._random.choice(running) if running else None

    def _remove_node(self) -> bool:
        present = [name for name, node in self._nodes.items() if node is not None]
        if not present:
            return False
        name = self._random.choice(present)
        node, self._nodes[name] = self._nodes[name], None
        self._mend_later(lambda: self._add(name))
        self._cluster.remove_node(node, allow_graceful=False)
        return True

    def _add_new_node(self) -> bool:
        """Add a node for some time; its removal counts as another fault."""
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
            except ProcessLookupError:  # it has been killed
                pass
            except Exception as error:
                sys.stderr.write(f"mending: {type(error).__name__}: {error}\n")

        at_s = time.monotonic() + self._random.uniform(*_UNTIL_MENDED_S)
        heapq.heappush(self._mendings, (at_s, next(self._order), quietly))

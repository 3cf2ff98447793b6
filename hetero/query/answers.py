"""What devices say of models: a device is asked once about a model, and its answer is kept."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from devices.model.model import Model
from devices.plugin.support import Support

#: Asks a device about a model under a configuration.
Ask = Callable[[str, Model, Mapping[str, Any]], Support]


class Answers:
    """Devices' answers, kept as long as the model that they are about.

    `ask`: asks a device about a model under its configuration.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[Model, dict[tuple[str, str], tuple[Support, float]]]
        self._kept = weakref.WeakKeyDictionary()

    def support(self, device: str, model: Model, config: Mapping[str, Any]) -> Support:
        """Return what a device takes of a model."""
        return self.timed(device, model, config)[0]

    def timed(self, device: str, model: Model, config: Mapping[str, Any]) -> tuple[Support, float]:
        """Return what a device takes of a model, and the seconds that it took to answer."""
        key = (device, repr(sorted(config.items())))
        with self._lock:
            found = self._kept.setdefault(model, {}).get(key)
        if found is None:
            began = time.perf_counter()
            found = self._ask(device, model, config), time.perf_counter() - began
            with self._lock:
                self._kept.setdefault(model, {})[key] = found
        return found

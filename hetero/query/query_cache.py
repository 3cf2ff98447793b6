"""What devices say of models: a device is asked once about a model, and its answer is kept.

Who asks while another waits for the same answer waits with it.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support
from hetero.properties.request import CompileRequest

#: What a device takes of a model, and the seconds that it took to say so.
Answer = Future[tuple[Support, float]]
#: Asks a device about a model under a configuration.
Ask = Callable[[str, Model, Mapping[str, Any]], Support]


class Answers:
    """Devices' answers, kept as long as the model that they are about."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._kept: weakref.WeakKeyDictionary[Model, dict[tuple[str, str], Answer]]
        self._kept = weakref.WeakKeyDictionary()

    def support(self, device: str, model: Model, config: Mapping[str, Any]) -> Support:
        """Return what a device takes of a model."""
        return self.timed(device, model, config)[0]

    def of(self, request: CompileRequest) -> Callable[[str, Model], Support]:
        """Return what asks devices under the options of a request."""
        return lambda device, model: self.support(device, model, request.configs[device])

    def timed(self, device: str, model: Model, config: Mapping[str, Any]) -> tuple[Support, float]:
        """Return what a device takes of a model, and the seconds that it took to answer."""
        key = (device, repr(sorted(config.items())))
        while True:
            with self._lock:
                kept = self._kept.setdefault(model, {})
                waits = key in kept
                answer = kept.setdefault(key, Future())
            if waits:
                with contextlib.suppress(CancelledError):  # who asked was interrupted
                    return answer.result()
                continue
            began = time.perf_counter()
            try:
                found = self._ask(device, model, config), time.perf_counter() - began
            except BaseException as error:
                with self._lock:
                    del kept[key]
                if isinstance(error, Exception):
                    answer.set_exception(error)
                else:
                    answer.cancel()
                raise
            answer.set_result(found)
            return found

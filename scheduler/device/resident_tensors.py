"""Resident tensors of a device: tensors that its process stores for clients between requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.errors import DeviceError, DeviceMemoryError, HeteroError, TensorError
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.batch_rows import join_rows
from hetero.devices.request.request import Request
from hetero.devices.request.response import ResidentOutputs, group_outputs
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.messages import (
    ConcatTensors,
    Failure,
    FetchTensors,
    Message,
    StoreTensors,
    Task,
    Values,
    bundle_key,
    sent_key,
)

#: Maximum number of messages that wait for bundles.
_MOST_AWAITED: Final = 1024
#: Cached name of an element type.


class _Bundle(NamedTuple):
    """Tensors that are stored and freed together."""

    client: str
    tensors: Mapping[str, Value]
    nbytes: int


class ResidentTensors:
    """Store of clients' tensor bundles, by key, limited to the device's memory size if known.

    `place`: converts a client's value to the form that the device stores.
    `is_shared`: whether the device has several clients, which must not access each other's
        tensors; otherwise all addresses belong to one client.
    """

    def __init__(
        self, descriptor: DeviceDescriptor, place: Callable[[Value], Value], is_shared: bool = True
    ) -> None:
        self._is_shared = is_shared
        self._descriptor = descriptor
        self._place = place
        self._bundles: dict[str, _Bundle] = {}
        #: Keys of bundles that may be evicted, oldest first.
        self._evictable: dict[str, None] = {}
        #: Messages that wait for a bundle, each with the bundle's key.
        self._deferred: list[tuple[str, FetchTensors]] = []
        self._lock = threading.Lock()
        self.nbytes = 0

    def keep(
        self, client: str, key: str, tensors: Mapping[str, Value], *, is_evictable: bool = False
    ) -> None:
        """Store a client's tensors, replacing those stored under the key.

        `is_evictable`: whether the tensors are removed if others need their memory.
        Raises DeviceMemoryError: the device is out of memory; TensorError: the key belongs to
            another client. Nothing changes in either case.
        """
        bundle = _Bundle(client, tensors, nbytes_of(tensors))
        with self._lock:
            previous = self._bundles.get(key)
            if previous is not None and not self._is_of(client, previous):
                raise TensorError(f"{self._location}: the key belongs to another client.")
            added_nbytes = bundle.nbytes - (0 if previous is None else previous.nbytes)
            most_nbytes = self._descriptor.memory_nbytes
            while (
                most_nbytes is not None
                and self.nbytes + added_nbytes > most_nbytes
                and self._evictable
            ):
                self._remove(next(iter(self._evictable)))
            total_nbytes = self.nbytes + added_nbytes
            if most_nbytes is not None and total_nbytes > most_nbytes:
                raise DeviceMemoryError(
                    f"{self._location} stores {self.nbytes} bytes of remote tensors; "
                    f"{bundle.nbytes} more exceed its limit of {most_nbytes}. "
                    "Close some remote tensors.",
                    device=self._descriptor.name,
                )
            self._bundles[key] = bundle
            self.nbytes = total_nbytes
            if is_evictable:
                self._evictable[key] = None

    def keep_outputs(
        self, client: str, task: Task, outputs: Mapping[str, Value]
    ) -> tuple[ResidentOutputs, ...]:
        """Store the outputs that a request declares resident; return them, grouped by shape.

        Raises DeviceMemoryError: the device is out of memory.
        """
        request = task.request
        names = {*request.resident_outputs, *request.resident_copies}
        resident = {name: value for name, value in outputs.items() if name in names}
        if resident:
            self.keep(client, bundle_key(*task), resident)
        return group_outputs(
            (position, value)
            for position, (name, value) in enumerate(outputs.items())
            if name in names
        )

    def find(self, client: str, key: str) -> Mapping[str, Value] | None:
        """Return a client's bundle; None if it has none under the key."""
        bundle = self._bundles.get(key)
        return None if bundle is None or not self._is_of(client, bundle) else bundle.tensors

    def keep_sent(self, client: str, task: Task, transfers: Mapping[str, Value]) -> None:
        """Store the tensors that a run sends to other devices, for recomputation, if they fit."""
        key = sent_key(*task)
        if transfers:
            with suppress(DeviceMemoryError):
                self.keep(client, key, transfers, is_evictable=True)

    def answer(
        self,
        message: StoreTensors | FetchTensors | ConcatTensors,
        send: Callable[[str, Message], None],
    ) -> None:
        """Execute a message and send the result, or send its client a `Failure`."""
        try:
            if isinstance(message, FetchTensors):  # by far the most frequent
                self.free(message.free, message.client)
                if message.awaits and self._defer(message):
                    return
                tensors = {
                    name: tensors_of_key[port]
                    for key, names in message.wanted.items()
                    for tensors_of_key in [self._tensors(message.client, key, names)]
                    for name, port in names.items()
                }
                send(message.address, Values(message.task, tensors))
                return
            values = self._join(message) if isinstance(message, ConcatTensors) else message.tensors
            resident = {name: self._place(value) for name, value in values.items()}
            self.keep(message.client, message.key, resident)
            send(message.client, Values(message.task, {}))
        except HeteroError as error:
            send(message.client, Failure(message.task, error))
        except Exception as error:  # an error of the plugin, for example an unreadable tensor
            device_error = DeviceError(
                f"{self._location}: cannot use a resident tensor: {type(error).__name__}: {error}",
                device=self._descriptor.name,
                node=self._descriptor.node,
                cause=repr(error),
            )
            send(message.client, Failure(message.task, device_error))

    def take_awaited(self, task: Task) -> list[FetchTensors]:
        """Remove and return the messages that waited for the stored outputs of a task."""
        if not self._deferred:
            return []
        key = bundle_key(*task)
        with self._lock:
            due = [message for missing, message in self._deferred if missing == key]
            self._cancel_deferred(lambda missing, _: missing == key)
        return due

    def _defer(self, message: FetchTensors) -> bool:
        """Queue a message if a bundle that it reads is missing; return whether it was queued."""
        with self._lock:
            missing = next((key for key in message.wanted if key not in self._bundles), None)
            if missing is None or len(self._deferred) >= _MOST_AWAITED:
                return False
            self._deferred.append((missing, message._replace(free=())))
        return True

    def _cancel_deferred(self, is_over: Callable[[str, FetchTensors], bool]) -> None:
        """Remove the queued messages that satisfy `is_over`. The caller holds the lock."""
        self._deferred = [entry for entry in self._deferred if not is_over(*entry)]

    def free(self, keys: Iterable[str], client: str | None = None) -> None:
        """Free bundles, only those of `client` if it is passed; ignore unknown keys."""
        with self._lock:
            for key in keys:
                bundle = self._bundles.get(key)
                if bundle is not None and (client is None or self._is_of(client, bundle)):
                    self._remove(key)

    def free_attempt(self, request: Request) -> None:
        """Free the outputs of a dropped attempt, and remove the messages that wait for them."""
        if request.has_resident_tensors:
            of_attempt = bundle_key(request, "")
            with self._lock:
                keys = [key for key in self._bundles if key.startswith(of_attempt)]
                self._cancel_deferred(
                    lambda missing, message: (
                        missing.startswith(of_attempt)
                        or bundle_key(message.task.request, "") == of_attempt
                    )
                )
            self.free(keys)

    def free_all_of(self, client: str) -> None:
        """Free all tensors of a client."""
        with self._lock:
            keys = [key for key, bundle in self._bundles.items() if bundle.client == client]
            self._cancel_deferred(lambda _, message: message.client == client)
        self.free(keys)

    def _remove(self, key: str) -> None:
        """Remove a bundle. The caller holds the lock."""
        self._evictable.pop(key, None)
        self.nbytes -= self._bundles.pop(key).nbytes

    @property
    def _location(self) -> str:
        return f"device {self._descriptor.name} on node {self._descriptor.node}"

    def _is_of(self, client: str, bundle: _Bundle) -> bool:
        return bundle.client == client or not self._is_shared

    def _join(self, message: ConcatTensors) -> dict[str, Value]:
        """Build the tensors of a `ConcatTensors` message."""

        def part(key: str, name: str, rows: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
            value = self._tensors(message.client, key, [name])[name]
            return value.to_host() if isinstance(value, RemoteTensor) else value, rows

        return {
            name: join_rows([part(*row_range) for row_range in parts], layout)
            for name, (layout, parts) in message.made.items()
        }

    def _tensors(self, client: str, key: str, ports: Iterable[str]) -> Mapping[str, Value]:
        """Return the tensors of a bundle; `ports` are the names to report in an error.

        Raises TensorError: the client has no bundle under the key.
        """
        bundle = self._bundles.get(key)
        if bundle is None or not self._is_of(client, bundle):
            missing = list(ports)
            raise TensorError(
                f"{self._location} no longer keeps {', '.join(map(repr, missing))}: it was closed, "
                "or the device was restarted. Create the tensor again; for a state, call "
                "reset_state().",
                port=missing[0],
            )
        return bundle.tensors

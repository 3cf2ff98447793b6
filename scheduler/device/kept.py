"""Kept tensors: what a device's process holds for clients, between and beyond their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.errors import DeviceError, DeviceMemoryError, HeteroError, TensorError
from hetero.devices.model.element_type import element_type_name
from hetero.devices.plugin.program import Value, nbytes_of
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.batch_rows import join_rows
from hetero.devices.request.request import Request
from hetero.devices.request.response import ResidentOutputs
from hetero.scheduler.vocabulary.messages import (
    Failure,
    Give,
    Join,
    Keep,
    Message,
    Task,
    Values,
    bundle_key,
    sent_key,
)
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

#: So many messages may wait for bundles to come.
_MOST_AWAITED: Final = 1024
#: An element type's name, looked up once.
_kind_of = cache(element_type_name)


class _Bundle(NamedTuple):
    """Tensors that are kept, and let go of, together."""

    client: str
    tensors: Mapping[str, Value]
    nbytes: int


class KeptTensors:
    """Bundles of clients' tensors, by key; no more bytes than the device has memory, if it says.

    `place`: returns a client's value as the device keeps it.
    `is_shared`: whether there are several clients, of whom none may have another's tensors; else
        all addresses are those of one.
    """

    def __init__(
        self, descriptor: DeviceDescriptor, place: Callable[[Value], Value], is_shared: bool = True
    ) -> None:
        self._is_shared = is_shared
        self._descriptor = descriptor
        self._place = place
        self._held: dict[str, _Bundle] = {}
        #: Keys of bundles that give way where there is no room, the oldest first.
        self._spare: dict[str, None] = {}
        #: What is to be sent once a bundle is kept, with its key.
        self._awaited: list[tuple[str, Give]] = []
        self._lock = threading.Lock()
        self.nbytes = 0

    def keep(self, client: str, key: str, tensors: Mapping[str, Value]) -> None:
        """Hold a client's tensors, over what is held under the key.

        Raises DeviceMemoryError: there is no room, TensorError: another client has the key; then
            nothing is changed.
        """
        bundle = _Bundle(client, tensors, nbytes_of(tensors))
        with self._lock:
            held = self._held.get(key)
            if held is not None and not self._is_of(client, held):
                raise TensorError(f"{self._where} keeps tensors of another client's there.")
            more = bundle.nbytes - (0 if held is None else held.nbytes)
            most_nbytes = self._descriptor.memory_nbytes
            while most_nbytes is not None and self.nbytes + more > most_nbytes and self._spare:
                self._let_go(next(iter(self._spare)))
            after = self.nbytes + more
            if most_nbytes is not None and after > most_nbytes:
                raise DeviceMemoryError(
                    f"{self._where} keeps {self.nbytes} bytes of remote tensors; "
                    f"{bundle.nbytes} more are over its {most_nbytes}. Close some.",
                    device=self._descriptor.name,
                )
            self._held[key] = bundle
            self.nbytes = after

    def keep_outputs(
        self, client: str, task: Task, outputs: Mapping[str, Value]
    ) -> tuple[ResidentOutputs, ...]:
        """Keep outputs that a request says; return which, those of one shape together.

        Raises DeviceMemoryError: there is no room.
        """
        request = task.request
        names = {*request.resident_outputs, *request.resident_copies}
        kept: dict[str, Value] = {}
        told: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for position, (name, value) in enumerate(outputs.items()):
            if name in names:
                kept[name] = value
                told.setdefault((_kind_of(value.dtype), value.shape), []).append(position)
        if kept:
            self.keep(client, bundle_key(*task), kept)
        return tuple((kind, shape, tuple(at)) for (kind, shape), at in told.items())

    def keep_sent(self, client: str, task: Task, sent: Mapping[str, Value]) -> None:
        """Keep what a run sends to others, so that they can run again, while there is room."""
        key = sent_key(*task)
        if sent:
            with suppress(DeviceMemoryError):
                self.keep(client, key, sent)
                with self._lock:
                    self._spare[key] = None

    def answer(self, message: Keep | Give | Join, send: Callable[[str, Message], None]) -> None:
        """Do what a message asks for, or send its client a `Failure` that says why not."""
        try:
            if isinstance(message, Give):  # most by far
                self.free(message.free, message.client)
                if message.awaits and self._put_off(message):
                    return
                tensors = {
                    name: held[wanted]
                    for key, named in message.wanted.items()
                    for held in [self._tensors(message.client, key, named)]
                    for name, wanted in named.items()
                }
                send(message.address, Values(message.task, tensors))
                return
            made = self._joined(message) if isinstance(message, Join) else message.tensors
            placed = {name: self._place(value) for name, value in made.items()}
            self.keep(message.client, message.key, placed)
            send(message.client, Values(message.task, {}))
        except HeteroError as error:
            send(message.client, Failure(message.task, error))
        except Exception as error:  # a vendor's: the tensor cannot be read, say
            failed = DeviceError(
                f"{self._where}: a kept tensor cannot be used: {type(error).__name__}: {error}",
                device=self._descriptor.name,
                node=self._descriptor.node,
                cause=repr(error),
            )
            send(message.client, Failure(message.task, failed))

    def take_awaited(self, task: Task) -> list[Give]:
        """Return what waited for the outputs of a task, which are kept now."""
        if not self._awaited:
            return []
        key = bundle_key(*task)
        with self._lock:
            due = [message for missing, message in self._awaited if missing == key]
            self._forget(lambda missing, _: missing == key)
        return due

    def _put_off(self, message: Give) -> bool:
        """Whether a bundle that a message wants is still to come: it waits for that then."""
        with self._lock:
            missing = next((key for key in message.wanted if key not in self._held), None)
            if missing is None or len(self._awaited) >= _MOST_AWAITED:
                return False
            self._awaited.append((missing, message._replace(free=())))
        return True

    def _forget(self, is_over: Callable[[str, Give], bool]) -> None:
        """Have nothing wait any more of which that is said; the lock is held."""
        self._awaited = [entry for entry in self._awaited if not is_over(*entry)]

    def free(self, keys: Iterable[str], client: str | None = None) -> None:
        """Let go of bundles, of a client's if it is said; those that are not there are none."""
        with self._lock:
            for key in keys:
                held = self._held.get(key)
                if held is not None and (client is None or self._is_of(client, held)):
                    self._let_go(key)

    def free_attempt(self, request: Request) -> None:
        """Let go of the outputs of an attempt that nobody waits for, and of what waits for it."""
        if request.has_resident_tensors:
            of_attempt = bundle_key(request, "")
            with self._lock:
                keys = [key for key in self._held if key.startswith(of_attempt)]
                self._forget(
                    lambda missing, message: (
                        missing.startswith(of_attempt)
                        or bundle_key(message.task.request, "") == of_attempt
                    )
                )
            self.free(keys)

    def free_all_of(self, client: str) -> None:
        """Let go of what a client had here."""
        with self._lock:
            keys = [key for key, held in self._held.items() if held.client == client]
            self._forget(lambda _, message: message.client == client)
        self.free(keys)

    def _let_go(self, key: str) -> None:
        """Forget a bundle; the lock is held."""
        self._spare.pop(key, None)
        self.nbytes -= self._held.pop(key).nbytes

    @property
    def _where(self) -> str:
        return f"device {self._descriptor.name} on node {self._descriptor.node}"

    def _is_of(self, client: str, bundle: _Bundle) -> bool:
        return bundle.client == client or not self._is_shared

    def _joined(self, message: Join) -> dict[str, Value]:
        """Return what a message has rows made to."""

        def part(key: str, old: str, rows: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
            value = self._tensors(message.client, key, [old])[old]
            return value.to_host() if isinstance(value, RemoteTensor) else value, rows

        return {
            name: join_rows([part(*told) for told in parts], layout)
            for name, (layout, parts) in message.made.items()
        }

    def _tensors(self, client: str, key: str, ports: Iterable[str]) -> Mapping[str, Value]:
        """Return a bundle's tensors, of which `ports` are wanted.

        Raises TensorError: the client has none there.
        """
        held = self._held.get(key)
        if held is None or not self._is_of(client, held):
            missing = list(ports)
            raise TensorError(
                f"{self._where} no longer keeps {', '.join(map(repr, missing))}: it was "
                "closed, or the device was started again. Make the tensor anew; of a state, "
                "reset_state().",
                port=missing[0],
            )
        return held.tensors

"""Kept tensors: what a device's process holds for clients, between and beyond their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from devices.errors import DeviceError, DeviceMemoryError, HeteroError, TensorError
from devices.model.element_type import element_type_name
from devices.plugin.program import Value, nbytes_of
from devices.plugin.remote import RemoteTensor
from devices.request.joined_rows import join_rows
from devices.request.request import Request
from scheduler.vocabulary.messages import Failure, Give, Join, Keep, Message, Values, output_key
from scheduler.vocabulary.rows import DeviceDescriptor


class KeptTensors:
    """Tensors of clients, by key; in all no more bytes than the device has memory, if it says.

    `place`: returns a client's value as the device keeps it.
    `is_shared`: whether there are several clients, of whom none may have another's tensors; else
        all addresses are those of one.
    """

    def __init__(
        self,
        descriptor: DeviceDescriptor,
        place: Callable[[Value], Value],
        is_shared: bool = True,
    ) -> None:
        self._is_shared = is_shared
        self._descriptor = descriptor
        self._place = place
        #: Key -> whose it is, and the tensor.
        self._held: dict[str, tuple[str, Value]] = {}
        self._lock = threading.Lock()
        self.nbytes = 0

    def keep(self, client: str, tensors: Mapping[str, Value]) -> None:
        """Hold a client's tensors, over what is held under their keys.

        Raises DeviceMemoryError: there is no room, TensorError: another client has a key; then
            nothing is changed.
        """
        with self._lock:
            if not all(self._is_of(client, key) for key in tensors if key in self._held):
                raise TensorError(f"{self._where} keeps tensors of another client's there.")
            old = sum(nbytes_of(self._held[key][1]) for key in tensors if key in self._held)
            after = self.nbytes - old + nbytes_of(tensors)
            most_nbytes = self._descriptor.memory_nbytes
            if most_nbytes is not None and after > most_nbytes:
                raise DeviceMemoryError(
                    f"{self._where} keeps {self.nbytes} bytes of remote tensors; "
                    f"{nbytes_of(tensors)} more are over its {most_nbytes}. Close some.",
                    device=self._descriptor.name,
                )
            self._held.update((key, (client, value)) for key, value in tensors.items())
            self.nbytes = after

    def keep_outputs(
        self, client: str, request: Request, outputs: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Keep what a request says of some outputs; return all, those as their type and shape.

        Raises DeviceMemoryError: there is no room.
        """
        kept = {name: outputs[name] for name in request.keep if name in outputs}
        self.keep(client, {output_key(request, name): value for name, value in kept.items()})
        return {**outputs, **{name: _described(value) for name, value in kept.items()}}

    def answer(self, message: Keep | Give | Join, send: Callable[[str, Message], None]) -> None:
        """Do what a message asks for, or send its client a `Failure` that says why not."""
        try:
            if isinstance(message, Give):  # most by far
                self.free(key for key in message.free if self._is_of(message.client, key))
                tensors = self._tensors(message.client, message.keys)
                send(message.address, Values(message.task, tensors))
            elif isinstance(message, Keep):
                placed = {key: self._place(value) for key, value in message.tensors.items()}
                self.keep(message.client, placed)
                send(message.client, Values(message.task, {}))
            else:
                self.keep(message.client, self._joined(message))
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

    def free(self, keys: Iterable[str]) -> None:
        """Let go of tensors; those that are not there are none."""
        with self._lock:
            for key in keys:
                if (held := self._held.pop(key, None)) is not None:
                    self.nbytes -= nbytes_of(held[1])

    def free_attempt(self, request: Request) -> None:
        """Let go of the outputs of an attempt that nobody waits for."""
        if request.keep:
            self.free(output_key(request, name) for name in request.keep)

    def free_all_of(self, client: str) -> None:
        """Let go of what a client had here."""
        with self._lock:
            keys = [key for key, (owner, _) in self._held.items() if owner == client]
        self.free(keys)

    @property
    def _where(self) -> str:
        return f"device {self._descriptor.name} on node {self._descriptor.node}"

    def _is_of(self, client: str, key: str) -> bool:
        held = self._held.get(key)
        return held is not None and (held[0] == client or not self._is_shared)

    def _joined(self, message: Join) -> dict[str, Value]:
        """Return what a message has rows made to, as the device keeps it."""
        keys = {key for _, parts in message.made.values() for key, _ in parts}
        held = self._tensors(message.client, {key: key for key in keys})
        arrays = {k: v.to_host() if isinstance(v, RemoteTensor) else v for k, v in held.items()}
        return {
            key: self._place(join_rows([(arrays[old], rows) for old, rows in parts], layout))
            for key, (layout, parts) in message.made.items()
        }

    def _tensors(self, client: str, keys: Mapping[str, str]) -> dict[str, Value]:
        with self._lock:
            if missing := [name for name, key in keys.items() if not self._is_of(client, key)]:
                raise TensorError(
                    f"{self._where} no longer keeps {', '.join(map(repr, missing))}: it was "
                    "closed, or the device was started again. Make the tensor anew; of a state, "
                    "reset_state().",
                    port=missing[0],
                )
            return {name: self._held[key][1] for name, key in keys.items()}


def _described(value: Value) -> Value:
    return [element_type_name(value.dtype), list(value.shape)]

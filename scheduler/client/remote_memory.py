"""Remote tensors as their client sees them: what devices keep for it, and who frees it."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    TensorError,
    TensorTypeError,
    UnsupportedOperationError,
)
from hetero.devices.model.element_type import Type, element_type_name
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.one_shot_event import WAIT_SLICE_S
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteContext, RemoteTensor, ResidentTensor
from hetero.devices.request.batch_rows import join_rows
from hetero.devices.request.promise import Promise
from hetero.devices.request.request import Request
from hetero.devices.request.tensor import Tensor, empty_tensor
from hetero.scheduler.channels.channel import Channel, Receiver
from hetero.scheduler.client.kept import DeviceBundle, DeviceTensor, Joining, Past, lost_tensor
from hetero.scheduler.client.past import PastJoin, copied
from hetero.scheduler.clock import Clock, Timer
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.vocabulary.messages import (
    Failure,
    Free,
    Give,
    Join,
    Keep,
    Message,
    RowsOf,
    Task,
    Values,
    bundle_key,
    sent_key,
)

T = TypeVar("T")
#: Seconds that a device may take to take in a tensor, or to give one; for each byte so much more.
_TIMEOUT_S: Final = 60.0
_TIMEOUT_S_PER_BYTE: Final = 1e-7
#: The name of a tensor that is a bundle by itself.
_TENSOR: Final = "tensor"
#: Makes a `ResidentTensor` without a call of Python's: there is one for each state and run.
_new_kept: Final = partial(tuple.__new__, ResidentTensor)
#: How often what is lost is made again for one answer.
_TRIES: Final = 3
#: Seconds after which devices free what nobody holds, where nothing is asked of them before.
_FREE_S: Final = 0.05
#: Seconds until a device that is not heard is tried again, and until it has let go of everything.
_AGAIN_S: Final = 1.0
_LEASE_S: Final = 60.0


class RemoteMemory:
    """What an executor's client has devices keep.

    `name`: the client's, among the parties that its channel serves.
    `expect`: called when an answer is awaited, so that somebody receives it.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[str, Receiver], Channel],
        clock: Clock,
        is_lost: Callable[[str], bool] = lambda address: False,
        expect: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._clock = clock
        self._timer: Timer | None = None
        self.is_lost = is_lost
        self.expect = expect
        self._home = HomeProcess()
        self._channel: Channel | None = None
        #: Whether devices keep, or kept, something.
        self.is_used = False
        self._numbers = itertools.count(1)
        #: Bundles that tasks have made, or are to make, by key.
        self._made: WeakValueDictionary[str, DeviceBundle] = WeakValueDictionary()
        #: Answers that are awaited, by number; ids of runs that make states again, as they are.
        self.awaited: dict[int, Promise[Mapping[str, Value]]] = {}
        self.again: set[int] = set()
        self._lock = threading.Lock()
        #: (address, key) of bundles that nobody holds, and whether the clock was told of some.
        self._unheld: deque[tuple[str, str]] = deque()
        self._is_told = False
        #: Address of a device that is not heard -> until when it is tried to free what.
        self._unheard: dict[str, tuple[float, list[str]]] = {}
        self._closed = False

    def context(self, device: str, address: Callable[[], str]) -> DeviceContext:
        """Return a device's memory; `address` returns where the device is reached now."""
        return DeviceContext(self, device, address)

    def outputs(
        self,
        device: str,
        address: str,
        task: Task,
        specs: Mapping[str, tuple[str, tuple[int, ...]]],
        answered: Mapping[str, Value] = {},
    ) -> dict[str, Value]:
        """Return what stands for what a task's device keeps; `answered`: outputs that came here."""
        bundle = self._made_by(device, address, task)
        bundle.specs, bundle.is_awaited = specs, False
        if answered:
            bundle.copies = {n: copied(value) for n, value in answered.items() if n in specs}
        return dict(zip(specs, map(_new_kept, zip(itertools.repeat(bundle), specs)), strict=True))

    def pending_outputs(
        self, device: str, address: str, task: Task, names: Iterable[str], past_nbytes: int | None
    ) -> dict[str, Value]:
        """Return what stands for outputs that a task's device will keep, of so large a past."""
        bundle = self._made_by(device, address, task)
        bundle.past_nbytes = past_nbytes
        return {name: ResidentTensor(bundle, name) for name in names}

    def _made_by(self, device: str, address: str, task: Task) -> DeviceBundle:
        """Return the one object that stands for what a task has its device keep."""
        self._connected()  # what is no longer held is freed by way of it
        key = bundle_key(*task)
        with self._lock:
            bundle = self._made.get(key)
            if bundle is None:
                bundle = self._made[key] = DeviceBundle(self, device, address, key, {})
                bundle.is_awaited = True
        return bundle

    def sent(self, device: str, address: str, task: Task) -> DeviceBundle:
        """Return what stands for what a task sent to others, which its device keeps."""
        return DeviceBundle(self, device, address, sent_key(*task), {})

    def put(self, device: str, address: str, array: np.ndarray) -> ResidentTensor[DeviceBundle]:
        """Have a device keep a copy of an array.

        Raises DeviceMemoryError: it has no room; DeviceLostError: it is gone.
        """
        channel = self._connected()
        key = f"{self._name}/{next(self._numbers)}"
        copy = np.array(array)
        message = partial(Keep, client=channel.address, key=key, tensors={_TENSOR: copy})
        self._ask(device, address, copy.nbytes, message)
        specs = {_TENSOR: (element_type_name(copy.dtype), copy.shape)}
        return ResidentTensor(DeviceBundle(self, device, address, key, specs), _TENSOR)

    def fetch(self, kept: ResidentTensor[DeviceBundle]) -> np.ndarray:
        """Return a copy of a tensor.

        Raises DeviceLostError: its device is gone; TensorError: the device has not got it.
        """
        own, (bundle, name) = self._connected().address, kept
        nbytes = bundle.tensor(name).nbytes

        def ask() -> Mapping[str, Value]:  # where it is by then
            message = partial(Give, client=own, address=own, wanted={bundle.key: {_TENSOR: name}})
            return self._ask(bundle.device, bundle.address, nbytes, message)

        return np.array(self._had_back([bundle], ask)[_TENSOR])

    def join(self, made: Joining) -> dict[str, Value]:
        """Return tensors made of rows of others, by name, on the device that keeps them.

        Of several devices' they are made here.
        Raises DeviceLostError, TensorLostError: a device is gone; DeviceMemoryError: it has no
            room; TensorError: it has not got one.
        """
        olds = [self._kept(name, t) for name, (parts, _) in made.items() for t, _ in parts]
        return self._had_back([old.bundle for old in olds], partial(self._join, made))

    def _join(self, made: Joining) -> dict[str, Value]:
        own = self._connected().address
        found: dict[str, Value] = {}
        asked: dict[str, tuple[DeviceBundle, dict[str, RowsOf]]] = {}
        joined: dict[str, Any] = {}
        for name, (parts, layout) in made.items():
            olds = [(self._kept(name, tensor), tuple(rows)) for tensor, rows in parts]
            for old, _ in olds:
                self._check(name, old.bundle)
            first = olds[0][0].bundle
            if any(old.bundle.address != first.address for old, _ in olds):
                found[name] = join_rows([(self.fetch(old), rows) for old, rows in olds], layout)
                continue
            if first.address not in asked:
                key = f"{self._name}/{next(self._numbers)}"
                asked[first.address] = DeviceBundle(self, first.device, first.address, key, {}), {}
            bundle, told = asked[first.address]
            joined[name] = olds, layout
            told[name] = layout, tuple((old.bundle.key, old.name, rows) for old, rows in olds)
            kind, shape = first.specs[olds[0][0].name]
            shape = layout.shape(shape, sum(len(rows) for _, rows in olds))
            bundle.specs = {**bundle.specs, name: (kind, shape)}
            found[name] = ResidentTensor(bundle, name)
        for bundle, told in asked.values():
            nbytes = sum(bundle.tensor(name).nbytes for name in told)
            message = partial(Join, client=own, key=bundle.key, made=told)
            self._ask(bundle.device, bundle.address, nbytes, message)
        past = PastJoin.of(joined)
        for bundle, _ in asked.values():
            bundle.past = past
        return found

    def usable(self, inputs: Mapping[str, Value]) -> tuple[Mapping[str, Value], frozenset[str]]:
        """Return what a request may be given, and which devices keep some of that.

        Raises TensorTypeError: one is in a plugin's own memory; TensorError: one is closed, of
            another Core, or of a device that is gone and not to be made again.
        """
        found = dict(inputs)
        bundles: dict[DeviceBundle, str] = {}
        for name, value in inputs.items():
            if type(value) is not ResidentTensor:
                if type(value) is np.ndarray or not isinstance(value, RemoteTensor):
                    continue
                found[name] = value = self._kept(name, value)
            bundles[value.bundle] = name
        for bundle, name in bundles.items():
            self._check(name, bundle, may_be_lost=bundle.past is not None)
        return found, frozenset([bundle.device for bundle in bundles])

    def _kept(self, port: str, tensor: RemoteTensor) -> ResidentTensor[DeviceBundle]:
        """Return what stands for a tensor.

        Raises TensorTypeError: it is in a plugin's own memory; TensorError: it is closed.
        """
        if not isinstance(tensor, DeviceTensor):
            raise TensorTypeError(
                f"input {port!r} is in memory of a device, which a model that may run on others "
                "cannot read; give tensor.to_host(), or one that Core.create_context made.",
                port=port,
            )
        return tensor.kept

    def _had_back(
        self, bundles: Sequence[DeviceBundle], ask: Callable[[], T], tries: int = _TRIES
    ) -> T:
        """Return what devices answer about bundles, once those are made again that are lost.

        It is known how of those that have a past; one may be lost as it is asked about.
        """
        lost: dict[Past, dict[DeviceBundle, None]] = {}
        for bundle in bundles:
            if bundle.past is not None and self.is_lost(bundle.address):
                lost.setdefault(bundle.past, {})[bundle] = None
        for past, made in lost.items():
            past.restore(list(made))
        try:
            return ask()
        except DeviceLostError:
            if tries == 1 or all(bundle.past is None for bundle in bundles):
                raise
        return self._had_back(bundles, ask, tries - 1)

    def _check(self, port: str, bundle: DeviceBundle, *, may_be_lost: bool = False) -> None:
        """Raise TensorError if an input is of another Core, or of a device that is gone."""
        if bundle.memory is not self:
            raise TensorError(
                f"input {port!r} is a tensor that {bundle.device} keeps for another Core; give "
                "tensor.to_host(), or make it with this Core's create_context.",
                port=port,
                device=bundle.device,
            )
        if not may_be_lost and self.is_lost(bundle.address):
            raise lost_tensor(port, bundle)

    def give(
        self, channel: Channel, task: Task, address: str, values: Mapping[str, Value]
    ) -> Mapping[str, Value] | None:
        """Have whoever keeps inputs of a task send them to its device; return the others.

        `channel`: the task's client's.
        Returns: None where there are no others to be sent.
        Raises TensorError: the device that keeps one is gone.
        """
        wanted: dict[DeviceBundle, dict[str, str]] = {}
        others = {}
        for name, value in values.items():
            if type(value) is not ResidentTensor:
                others[name] = value
            elif (named := wanted.get(value.bundle)) is not None:
                named[name] = value.name
            else:
                self._check(name, value.bundle)
                wanted[value.bundle] = {name: value.name}
        if not wanted:
            return values
        holders: dict[str, dict[str, dict[str, str]]] = {}
        for bundle, named in wanted.items():
            holders.setdefault(bundle.address, {})[bundle.key] = named
        awaited = {bundle.key for bundle in wanted if bundle.is_awaited}
        unheld = self._take_unheld()
        for holder, keys in holders.items():
            free = tuple(unheld.pop(holder, ()))
            awaits = not awaited.isdisjoint(keys)
            channel.send(holder, Give(task, channel.address, address, keys, free, awaits))
        self._free(unheld)
        return others or None

    def close(self) -> None:
        """Take nothing more, and stop waiting."""
        with self._lock:
            self._closed = True
            awaited, self.awaited = list(self.awaited.values()), {}
            channel = self._channel
        for future in awaited:
            future.set_exception(self._closed_error())
        if self._timer is not None:
            self._timer.close()
        if channel is not None:
            channel.close()

    def _ask(
        self, device: str, address: str, nbytes: int, message: Callable[[Task], Keep | Give | Join]
    ) -> Mapping[str, Value]:
        """Send a message about so many bytes, which a device answers; return what it sends."""
        channel = self._connected()
        number = next(self._numbers)
        future: Promise[Mapping[str, Value]] = Promise()
        answered = self._clock.event()
        future.add_done_callback(lambda _: answered.set())
        with self._lock:
            self.awaited[number] = future
        self.expect()
        try:
            channel.send(address, message(Task(Request(deployment=self._name, id=number), 0)))
            timeout_s = _TIMEOUT_S + nbytes * _TIMEOUT_S_PER_BYTE
            until_s = self._clock.now_s() + timeout_s
            while not future.done():
                if self.is_lost(address):
                    raise DeviceLostError(
                        f"device {device} is gone, and with it what it kept. Make the tensor anew.",
                        device=device,
                        node="",
                        attempt=0,
                    )
                if self._clock.now_s() > until_s:
                    raise DeadlineError(
                        f"device {device} has not answered about a remote tensor of {nbytes} bytes "
                        f"for {timeout_s:.0f} s, though it is heard. Try again.",
                        timeout_s=timeout_s,
                    )
                answered.wait(WAIT_SLICE_S)
            error = future.exception()
            if error is None:
                return future.result()
            try:
                raise error
            finally:  # else it would hold itself, and with it the tensors
                del future, error
        finally:
            with self._lock:
                self.awaited.pop(number, None)

    def _receive(self, message: Message) -> None:
        if not isinstance(message, Values | Failure):
            return
        with self._lock:
            future = self.awaited.pop(message.task.request.id, None)
        if future is None:  # it came too late
            return
        if isinstance(message, Values):
            future.set_result(message.tensors)
        else:
            future.set_exception(message.error)

    def _connected(self) -> Channel:
        self._home.require("remote tensors")
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._channel is None:
                self._channel = self._connect(self._name, self._receive)
                self.is_used = True
                self._timer = self._clock.timer(self._free_unheld)
            return self._channel

    def _take_unheld(self) -> dict[str, list[str]]:
        """Return the keys, by address, of what nobody holds: whoever asks has them freed."""
        keys: dict[str, list[str]] = {}
        with suppress(IndexError):
            while True:
                address, key = self._unheld.popleft()
                keys.setdefault(address, []).append(key)
        return keys

    def _free(self, keys: Mapping[str, Sequence[str]]) -> None:
        """Have devices let go of what they keep, by their addresses; who is not heard, later."""
        now_s = self._clock.now_s()
        for address, unheld in keys.items():
            if not self.is_lost(address):
                with suppress(HeteroError):  # whoever is gone has let go
                    self._connected().send(address, Free(tuple(unheld)))
                continue
            with self._lock:
                self._unheard.setdefault(address, (now_s + _LEASE_S, []))[1].extend(unheld)
            if self._timer is not None:
                self._timer.by(now_s + _AGAIN_S)

    def let_go(self, address: str, key: str) -> None:
        """Take in that nobody holds a bundle; finalizers call this anywhere, locks held or not."""
        self._unheld.append((address, key))
        if not self._is_told:  # so that the clock is woken seldom, not for each tensor
            self._is_told = True
            self._clock.later(self._free_soon)

    def _free_soon(self) -> None:
        """Have devices free what nobody holds, unless a request sees to it before."""
        assert self._timer is not None
        self._timer.by(self._clock.now_s() + _FREE_S)

    def _free_unheld(self) -> float | None:
        self._is_told = False
        keys, now_s = self._take_unheld(), self._clock.now_s()
        with self._lock:
            for address, (until_s, unheld) in list(self._unheard.items()):
                is_heard = not self.is_lost(address)
                if is_heard:
                    keys.setdefault(address, []).extend(unheld)
                if is_heard or until_s <= now_s:
                    del self._unheard[address]
        self._free(keys)
        return now_s + _AGAIN_S if self._unheard else None

    def _closed_error(self) -> ClusterError:
        return ClusterError("the Core is closed, and its remote tensors with it; make another.")


class DeviceContext(RemoteContext):
    """A device's memory: tensors of it are kept in the process of the device.

    Made by `Core.create_context` and `CompiledModel.get_context`.
    """

    def __init__(self, memory: RemoteMemory, device: str, address: Callable[[], str]) -> None:
        self.device = device
        self._memory = memory
        self._address = address

    def __repr__(self) -> str:
        return f"<DeviceContext {self.device}>"

    def create_host_tensor(self, type: Any, shape: Sequence[int]) -> Tensor:
        """Return a tensor of zeros in this process's memory."""
        return empty_tensor(TensorSpec("", f"tensor({Type(type)})", tuple(shape)))

    def create_tensor(
        self, type: Any, shape: Sequence[int], properties: Mapping[str, Any] | None = None
    ) -> DeviceTensor:
        """Have the device keep a tensor of zeros, or of empty strings.

        Parameters
        ----------
        type : str, Type or dtype
            The element type: OpenVINO's, ONNX's or numpy's name of it.
        shape : sequence of int
            Its shape.
        properties : mapping, optional
            None or empty: there are no kinds of memory to choose from.

        Raises
        ------
        DeviceMemoryError
            The device has not so much memory left.
        DeviceLostError
            The device is gone.
        """
        if properties:
            raise UnsupportedOperationError(
                f"create_tensor on {self.device}: {dict(properties)}: its memory has no options."
            )
        return self.from_host(self.create_host_tensor(type, shape).data)

    def from_host(self, array: np.ndarray) -> DeviceTensor:
        """Have the device keep a copy of an array; errors as those of `create_tensor`."""
        array = np.asarray(array)
        return DeviceTensor(self._memory.put(self.device, self._address(), array))

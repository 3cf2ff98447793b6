"""Client side of resident tensors: put, fetch, join and free tensors in device memory."""

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
    ArgumentError,
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
from hetero.scheduler.client.device_tensors import (
    DeviceBundle,
    DeviceTensor,
    Joining,
    LineageNode,
    lost_tensor,
)
from hetero.scheduler.client.lineage import JoinNode, copy_value
from hetero.scheduler.clock import Clock, Timer
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.types.messages import (
    ConcatTensors,
    Failure,
    FetchTensors,
    FreeTensors,
    Message,
    RowsOf,
    StoreTensors,
    Task,
    Values,
    bundle_key,
    sent_key,
)

T = TypeVar("T")
#: Time limit of a device for storing or returning a tensor: a base, and an allowance per byte.
_TIMEOUT_S: Final = 60.0
_TIMEOUT_S_PER_BYTE: Final = 1e-7
#: Name of the tensor in a bundle of a single tensor.
_TENSOR: Final = "tensor"
#: Creates a `ResidentTensor` without Python's call overhead: each run creates one per state.
_new_kept: Final = partial(tuple.__new__, ResidentTensor)
#: Maximum recomputations of lost tensors for one response.
_TRIES: Final = 3
#: Seconds until devices free unreferenced bundles, if no request carries the message earlier.
_FREE_S: Final = 0.05
#: Seconds until freeing on an unreachable device is retried, and until the device itself expires
#: this client's tensors.
_AGAIN_S: Final = 1.0
_LEASE_S: Final = 60.0


class RemoteMemory:
    """Resident tensors of an executor's client.

    `name`: the client's name among the endpoints of its channel.
    `is_lost`: whether the process at an address is unreachable.
    `expect`: called before a response is awaited, so that some thread receives it.
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
        self._home_process = HomeProcess()
        self._channel: Channel | None = None
        #: Whether any tensor was ever resident on a device.
        self.is_used = False
        self._numbers = itertools.count(1)
        #: Bundles that tasks have produced or will produce, by key.
        self._bundles: WeakValueDictionary[str, DeviceBundle] = WeakValueDictionary()
        #: Awaited responses by number, and the ids of runs that recompute states.
        self.pending: dict[int, Promise[Mapping[str, Value]]] = {}
        self.recomputations: set[int] = set()
        self._lock = threading.Lock()
        #: (address, key) of unreferenced bundles, and whether the timer is set to free them.
        self._released_bundles: deque[tuple[str, str]] = deque()
        self._is_scheduled = False
        #: Address of an unreachable device -> when to give up, and the keys to free there.
        self._retries: dict[str, tuple[float, list[str]]] = {}
        self._closed = False

    def context(self, device: str, address: Callable[[], str]) -> DeviceContext:
        """Return the memory of a device; `address` returns the device's current address."""
        return DeviceContext(self, device, address)

    def outputs(
        self,
        device: str,
        address: str,
        task: Task,
        specs: Mapping[str, tuple[str, tuple[int, ...]]],
        received: Mapping[str, Value] = {},
    ) -> dict[str, Value]:
        """Return references to a task's resident outputs.

        `received`: outputs of which the client also received a copy.
        """
        bundle = self._made_by(device, address, task)
        bundle.specs, bundle.is_awaited = specs, False
        if received:
            bundle.copies = {n: copy_value(value) for n, value in received.items() if n in specs}
        return dict(zip(specs, map(_new_kept, zip(itertools.repeat(bundle), specs)), strict=True))

    def new_outputs(
        self,
        device: str,
        address: str,
        key: str,
        specs: Mapping[str, tuple[str, tuple[int, ...]]],
    ) -> dict[str, Value]:
        """Return references to resident outputs that nobody awaited."""
        if self._closed or self._channel is None:
            self._get_channel()  # freeing the bundle uses the channel
        bundle = DeviceBundle(self, device, address, key, specs)
        return dict(zip(specs, map(_new_kept, zip(itertools.repeat(bundle), specs)), strict=True))

    def pending_outputs(
        self,
        device: str,
        address: str,
        task: Task,
        names: Iterable[str],
        lineage_nbytes: int | None,
    ) -> dict[str, Value]:
        """Return references to outputs that a task will produce; `lineage_nbytes`: lineage size."""
        bundle = self._made_by(device, address, task)
        bundle.lineage_nbytes = lineage_nbytes
        return {name: _new_kept((bundle, name)) for name in names}

    def _made_by(self, device: str, address: str, task: Task) -> DeviceBundle:
        """Return the only bundle of a task's resident outputs."""
        self._get_channel()  # freeing the bundle uses the channel
        key = bundle_key(*task)
        with self._lock:
            bundle = self._bundles.get(key)
            if bundle is None:
                bundle = self._bundles[key] = DeviceBundle(self, device, address, key, {})
                bundle.is_awaited = True
        return bundle

    def sent_bundle(self, device: str, address: str, task: Task) -> DeviceBundle:
        """Return the bundle of the outputs that a task sent to other devices."""
        return DeviceBundle(self, device, address, sent_key(*task), {})

    def put(self, device: str, address: str, array: np.ndarray) -> ResidentTensor[DeviceBundle]:
        """Store a copy of an array on a device.

        Raises DeviceMemoryError: the device is out of memory; DeviceLostError: it is lost.
        """
        channel = self._get_channel()
        key = f"{self._name}/{next(self._numbers)}"
        copy = np.array(array)
        message = partial(StoreTensors, client=channel.address, key=key, tensors={_TENSOR: copy})
        self._ask(device, address, copy.nbytes, message)
        specs = {_TENSOR: (element_type_name(copy.dtype), copy.shape)}
        return ResidentTensor(DeviceBundle(self, device, address, key, specs), _TENSOR)

    def fetch(self, tensor: ResidentTensor[DeviceBundle]) -> np.ndarray:
        """Return a copy of a tensor.

        Raises DeviceLostError: the device is lost; TensorError: it does not hold the tensor.
        """
        address, (bundle, name) = self._get_channel().address, tensor
        nbytes = bundle.tensor(name).nbytes

        def ask() -> Mapping[str, Value]:  # recomputation may have moved the bundle
            message = partial(
                FetchTensors, client=address, address=address, wanted={bundle.key: {_TENSOR: name}}
            )
            return self._ask(bundle.device, bundle.address, nbytes, message)

        return np.array(self._with_recomputation([bundle], ask)[_TENSOR])

    def join(self, joins: Joining) -> dict[str, Value]:
        """Build tensors from rows of others, by name, on the device that holds them.

        The client joins the rows itself if several devices hold them.
        Raises DeviceLostError, TensorLostError: a device is lost; DeviceMemoryError: it is out of
            memory; TensorError: it does not hold a tensor.
        """
        sources = [
            self._resident_reference(name, t)
            for name, (parts, _) in joins.items()
            for t, _ in parts
        ]
        return self._with_recomputation(
            [source.bundle for source in sources], partial(self._join, joins)
        )

    def _join(self, joins: Joining) -> dict[str, Value]:
        own = self._get_channel().address
        tensors: dict[str, Value] = {}
        targets: dict[str, tuple[DeviceBundle, dict[str, RowsOf]]] = {}
        lineage: dict[str, Any] = {}
        for name, (parts, layout) in joins.items():
            sources = [
                (self._resident_reference(name, tensor), tuple(rows)) for tensor, rows in parts
            ]
            for source, _ in sources:
                self._check(name, source.bundle)
            first = sources[0][0].bundle
            if any(source.bundle.address != first.address for source, _ in sources):
                tensors[name] = join_rows(
                    [(self.fetch(source), rows) for source, rows in sources], layout
                )
                continue
            if first.address not in targets:
                key = f"{self._name}/{next(self._numbers)}"
                targets[first.address] = (
                    DeviceBundle(self, first.device, first.address, key, {}),
                    {},
                )
            bundle, parts_by_name = targets[first.address]
            lineage[name] = sources, layout
            parts_by_name[name] = (
                layout,
                tuple((source.bundle.key, source.name, rows) for source, rows in sources),
            )
            kind, shape = first.specs[sources[0][0].name]
            shape = layout.shape(shape, sum(len(rows) for _, rows in sources))
            bundle.specs = {**bundle.specs, name: (kind, shape)}
            tensors[name] = ResidentTensor(bundle, name)
        for bundle, parts_by_name in targets.values():
            nbytes = sum(bundle.tensor(name).nbytes for name in parts_by_name)
            message = partial(ConcatTensors, client=own, key=bundle.key, made=parts_by_name)
            self._ask(bundle.device, bundle.address, nbytes, message)
        node = JoinNode.of(lineage)
        for bundle, _ in targets.values():
            bundle.lineage = node
        return tensors

    def usable(self, inputs: Mapping[str, Value]) -> tuple[Mapping[str, Value], frozenset[str]]:
        """Resolve the remote tensors among inputs; return the inputs and the devices holding them.

        Raises TensorTypeError: a tensor is in a plugin's own memory; TensorError: a tensor is
            closed, belongs to another Core, or was lost and cannot be recomputed.
        """
        resolved = dict(inputs)
        bundles: dict[DeviceBundle, str] = {}
        for name, value in inputs.items():
            if type(value) is not ResidentTensor:
                if type(value) is np.ndarray or not isinstance(value, RemoteTensor):
                    continue
                resolved[name] = value = self._resident_reference(name, value)
            bundles[value.bundle] = name
        for bundle, name in bundles.items():
            self._check(name, bundle, may_be_lost=bundle.lineage is not None)
        return resolved, frozenset([bundle.device for bundle in bundles])

    def _resident_reference(self, port: str, tensor: RemoteTensor) -> ResidentTensor[DeviceBundle]:
        """Return the reference to a resident tensor.

        Raises TensorTypeError: it is in a plugin's own memory; TensorError: it is closed.
        """
        if not isinstance(tensor, DeviceTensor):
            raise TensorTypeError(
                f"input {port!r}: expected a host tensor or one of Core.create_context, got a "
                "tensor in a plugin's own memory, which other devices cannot read; pass "
                "tensor.to_host().",
                port=port,
            )
        return tensor.kept

    def _with_recomputation(
        self, bundles: Sequence[DeviceBundle], ask: Callable[[], T], tries: int = _TRIES
    ) -> T:
        """Recompute lost bundles that have a lineage; return the result of `ask`.

        A device that fails during `ask` starts another of `tries` attempts.
        """
        lost_bundles: dict[LineageNode, dict[DeviceBundle, None]] = {}
        for bundle in bundles:
            if bundle.lineage is not None and self.is_lost(bundle.address):
                lost_bundles.setdefault(bundle.lineage, {})[bundle] = None
        for node, bundles_of_past in lost_bundles.items():
            node.restore(list(bundles_of_past))
        try:
            return ask()
        except DeviceLostError:
            if tries == 1 or all(bundle.lineage is None for bundle in bundles):
                raise
        return self._with_recomputation(bundles, ask, tries - 1)

    def _check(self, port: str, bundle: DeviceBundle, *, may_be_lost: bool = False) -> None:
        """Raise TensorError if an input belongs to another Core or to a lost device."""
        if bundle.memory is not self:
            raise TensorError(
                f"input {port!r} is a tensor on {bundle.device} that belongs to another Core; pass "
                "tensor.to_host(), or create it with this Core's create_context.",
                port=port,
                device=bundle.device,
            )
        if not may_be_lost and self.is_lost(bundle.address):
            raise lost_tensor(port, bundle)

    def send_resident_inputs(
        self, channel: Channel, task: Task, address: str, values: Mapping[str, Value]
    ) -> Mapping[str, Value] | None:
        """Request that devices send a task's resident inputs; return the inputs on the host.

        `channel`: the channel of the task's client.
        Returns: None if every input is resident.
        Raises TensorError: a device that holds an input is lost.
        """
        resident: dict[DeviceBundle, dict[str, str]] = {}
        others = {}
        for name, value in values.items():
            if type(value) is not ResidentTensor:
                others[name] = value
            elif (names := resident.get(value.bundle)) is not None:
                names[name] = value.name
            else:
                self._check(name, value.bundle)
                resident[value.bundle] = {name: value.name}
        if not resident:
            return values
        holders: dict[str, dict[str, dict[str, str]]] = {}
        for bundle, names in resident.items():
            holders.setdefault(bundle.address, {})[bundle.key] = names
        awaited_keys = {bundle.key for bundle in resident if bundle.is_awaited}
        garbage = self._take_garbage()
        for holder, keys in holders.items():
            free = tuple(garbage.pop(holder, ()))
            awaits = not awaited_keys.isdisjoint(keys)
            channel.send(holder, FetchTensors(task, channel.address, address, keys, free, awaits))
        self._free(garbage)
        return others or None

    def free_released(self, stores: Mapping[str, Callable[[Iterable[str]], None]] = {}) -> None:
        """Free unreferenced bundles at once.

        `stores`: functions that free bundles by their keys, of devices in this process.
        """
        released = self._released_bundles
        while released:
            try:
                bundle = address, key = released.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                if address in stores:
                    stores[address]((key,))
                else:
                    self._free({address: (key,)})
            except BaseException:  # Ctrl-C
                released.append(bundle)
                raise

    def close(self) -> None:
        """Close the channel; calls that wait raise ClusterError."""
        with self._lock:
            self._closed = True
            promises, self.pending = list(self.pending.values()), {}
            channel = self._channel
        for future in promises:
            future.set_exception(self._closed_error())
        if self._timer is not None:
            self._timer.close()
        if channel is not None:
            channel.close()

    def _ask(
        self,
        device: str,
        address: str,
        nbytes: int,
        message: Callable[[Task], StoreTensors | FetchTensors | ConcatTensors],
    ) -> Mapping[str, Value]:
        """Send a request to a device; return its response. `nbytes` extends the time limit."""
        channel = self._get_channel()
        number = next(self._numbers)
        future: Promise[Mapping[str, Value]] = Promise()
        completion = self._clock.event()
        future.add_done_callback(lambda _: completion.set())
        with self._lock:
            self.pending[number] = future
        self.expect()
        try:
            channel.send(address, message(Task(Request(deployment=self._name, id=number), 0)))
            timeout_s = _TIMEOUT_S + nbytes * _TIMEOUT_S_PER_BYTE
            until_s = self._clock.now_s() + timeout_s
            while not future.done():
                if self.is_lost(address):
                    raise DeviceLostError(
                        f"device {device} was lost with its tensors. Create the tensor again.",
                        device=device,
                        node="",
                        attempt=0,
                    )
                if self._clock.now_s() > until_s:
                    raise DeadlineError(
                        f"device {device} is reachable, but has not responded for {timeout_s:.0f} "
                        f"s about a remote tensor of {nbytes} bytes. Try again.",
                        timeout_s=timeout_s,
                    )
                completion.wait(WAIT_SLICE_S)
            error = future.exception()
            if error is None:
                return future.result()
            try:
                raise error
            finally:  # otherwise the error refers to itself, and keeps the tensors alive
                del future, error
        finally:
            with self._lock:
                self.pending.pop(number, None)

    def _receive(self, message: Message) -> None:
        if not isinstance(message, Values | Failure):
            return
        with self._lock:
            future = self.pending.pop(message.task.request.id, None)
        if future is None:  # the caller has given up
            return
        if isinstance(message, Values):
            future.set_result(message.tensors)
        else:
            future.set_exception(message.error)

    def _get_channel(self) -> Channel:
        self._home_process.require("remote tensors")
        with self._lock:
            if self._closed:
                raise self._closed_error()
            if self._channel is None:
                self._channel = self._connect(self._name, self._receive)
                self.is_used = True
                self._timer = self._clock.timer(self._free_garbage)
            return self._channel

    def _take_garbage(self) -> dict[str, list[str]]:
        """Remove and return the keys of unreferenced bundles, by address, for freeing."""
        keys: dict[str, list[str]] = {}
        with suppress(IndexError):
            while True:
                address, key = self._released_bundles.popleft()
                keys.setdefault(address, []).append(key)
        return keys

    def _free(self, keys: Mapping[str, Sequence[str]]) -> None:
        """Free bundles, by device address; on unreachable devices, try again later."""
        now_s = self._clock.now_s()
        for address, garbage in keys.items():
            if not self.is_lost(address):
                with suppress(HeteroError):  # a lost device holds nothing
                    self._get_channel().send(address, FreeTensors(tuple(garbage)))
                continue
            with self._lock:
                self._retries.setdefault(address, (now_s + _LEASE_S, []))[1].extend(garbage)
            if self._timer is not None:
                self._timer.make_due_by(now_s + _AGAIN_S)

    def schedule_free(self, address: str, key: str) -> None:
        """Schedule a bundle to be freed. Finalizers call it in any thread, under any lock."""
        self._released_bundles.append((address, key))
        if not self._is_scheduled:  # wake the clock once for many tensors
            self._is_scheduled = True
            self._clock.call_soon(self._free_soon)

    def _free_soon(self) -> None:
        """Set the timer that frees unreferenced bundles, unless a request frees them earlier."""
        assert self._timer is not None
        self._timer.make_due_by(self._clock.now_s() + _FREE_S)

    def _free_garbage(self) -> float | None:
        self._is_scheduled = False
        keys, now_s = self._take_garbage(), self._clock.now_s()
        with self._lock:
            for address, (until_s, garbage) in list(self._retries.items()):
                is_heard = not self.is_lost(address)
                if is_heard:
                    keys.setdefault(address, []).extend(garbage)
                if is_heard or until_s <= now_s:
                    del self._retries[address]
        self._free(keys)
        return now_s + _AGAIN_S if self._retries else None

    def _closed_error(self) -> ClusterError:
        return ClusterError("the Core and its remote tensors are closed; create another Core.")


class DeviceContext(RemoteContext):
    """Memory of a device, which creates tensors in the device's process.

    `Core.create_context` and `CompiledModel.get_context` create it.
    """

    def __init__(self, memory: RemoteMemory, device: str, address: Callable[[], str]) -> None:
        self.device = device
        self._memory = memory
        self._address = address

    def __repr__(self) -> str:
        return f"<DeviceContext {self.device}>"

    def check_owner(self, own_context: RemoteContext) -> None:
        """Raise ArgumentError if this context belongs to another Core than `own_context`."""
        if not isinstance(own_context, DeviceContext) or self._memory is not own_context._memory:
            raise ArgumentError(
                f"context of {self.device}: expected a context of this Core, got one of another "
                f"Core, which may be closed. Create it with core.create_context({self.device!r})."
            )

    def create_host_tensor(self, type: Any, shape: Sequence[int]) -> Tensor:
        """Create a tensor of zeros in this process's memory."""
        return empty_tensor(TensorSpec("", f"tensor({Type(type)})", tuple(shape)))

    def create_tensor(
        self, type: Any, shape: Sequence[int], properties: Mapping[str, Any] | None = None
    ) -> DeviceTensor:
        """Create a tensor of zeros, or of empty strings, on the device.

        Parameters
        ----------
        type : str, Type or dtype
            The element type, by its OpenVINO, ONNX or numpy name.
        shape : sequence of int
            The shape.
        properties : mapping, optional
            None or empty: the memory has no options.

        Raises
        ------
        DeviceMemoryError
            The device is out of memory.
        DeviceLostError
            The device is lost.
        """
        if properties:
            raise UnsupportedOperationError(
                f"create_tensor on {self.device}: expected no properties, got {dict(properties)}; "
                "the memory of a device has no options."
            )
        return self.from_host(self.create_host_tensor(type, shape).data)

    def from_host(self, array: np.ndarray) -> DeviceTensor:
        """Store a copy of an array on the device; raises the errors of `create_tensor`."""
        array = np.asarray(array)
        return DeviceTensor(self._memory.put(self.device, self._address(), array))

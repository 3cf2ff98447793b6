"""Client-side references to resident tensors: bundles, remote tensors, and their lineage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hetero.devices.errors import (
    BlobError,
    TensorError,
    TensorLostError,
    TensorTypeError,
    UnsupportedOperationError,
)
from hetero.devices.model.element_type import Type
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor, ResidentTensor, TensorBundle
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.response import StageTiming

#: Joins by the name of the new tensor: the source tensors with their row indices, and the layout.
Joining = Mapping[str, tuple[Sequence[tuple[RemoteTensor, Sequence[int]]], RowLayout]]
_numbers = itertools.count()


class Memory(Protocol):
    """Interface of the client's memory that bundles and their tensors use."""

    def schedule_free(self, address: str, key: str) -> None:
        """Schedule a bundle to be freed. Finalizers call it in any thread, under any lock."""

    def put(self, device: str, address: str, array: np.ndarray) -> ResidentTensor[DeviceBundle]:
        """Store a copy of an array on a device."""

    def fetch(self, tensor: ResidentTensor[DeviceBundle]) -> np.ndarray:
        """Return a copy of a tensor."""

    def join(self, joins: Joining) -> dict[str, Value]:
        """Build tensors from rows of other tensors."""


class LineageNode:
    """Lineage node: a run or a join that produced states.

    `before`: the nodes that produced the states it read.
    `restore`: recomputes bundles that this node or its ancestors produced.
    """

    __slots__ = ("nbytes", "number", "restore")

    def __init__(
        self,
        parents: Iterable[LineageNode],
        nbytes: int,
        restore: Callable[[Sequence[DeviceBundle]], None],
    ) -> None:
        self.restore = restore
        #: Ascending number: ancestors have lower ones.
        self.number = next(_numbers)
        #: Bytes retained for this node and its ancestors.
        self.nbytes: int = nbytes + sum(node.nbytes for node in set(parents))


class DeviceBundle(TensorBundle):
    """Reference to tensors in a device's process; the device frees them once it is collected."""

    # Defaults are class attributes, because each run creates a bundle, and most set none of them.
    #: The lineage node that produced it; None if it cannot be recomputed.
    lineage: LineageNode | None = None
    #: Whether its device has not produced it yet, and the expected bytes of its lineage.
    is_awaited = False
    lineage_nbytes: int | None = None
    #: Copies of those tensors that the device also returned to the client.
    copies: Mapping[str, Value] = {}

    def __init__(
        self,
        memory: Memory,
        device: str,
        address: str,
        key: str,
        specs: Mapping[str, tuple[str, tuple[int, ...]]],
    ) -> None:
        self.memory: Final = memory
        self.device = device
        self.address = address
        self.key = key
        self.specs = specs

    def __del__(self) -> None:
        self.memory.schedule_free(self.address, self.key)

    def move_to(self, other: DeviceBundle) -> None:
        """Swap locations with a recomputed bundle of equal contents."""
        self.device, other.device = other.device, self.device
        self.address, other.address = other.address, self.address
        self.key, other.key = other.key, self.key

    def tensor(self, name: str) -> DeviceTensor:
        """Return one of the tensors as a public `DeviceTensor`."""
        return DeviceTensor(ResidentTensor(self, name))


class DeviceTensor(RemoteTensor):
    """A resident tensor of a device, as an input or output of requests.

    The device frees it once it is closed or garbage-collected and no request reads it.
    """

    by_reference = True

    def __init__(self, reference: ResidentTensor[DeviceBundle]) -> None:
        kind, self.shape = reference.bundle.specs[reference.name]
        self.dtype = dtype_of(kind)
        self.memory: Final = reference.bundle.memory
        self._reference: ResidentTensor[DeviceBundle] | None = reference

    @property
    def kept(self) -> ResidentTensor[DeviceBundle]:
        """The reference to the resident tensor; raises TensorError if it is closed."""
        if self._reference is None:
            raise TensorError(
                "expected an open remote tensor, got a closed one; create another with "
                "create_tensor, or run the request again."
            )
        return self._reference

    @property
    def device(self) -> str:  # type: ignore[override]  # read-only: recomputation moves it
        """Name of the device that holds the tensor."""
        return self.kept.bundle.device

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._reference is None

    def __repr__(self) -> str:
        location = "closed" if self._reference is None else f"on {self._reference.bundle.device}"
        return f"<DeviceTensor {self.dtype}{list(self.shape)} {location}>"

    def __reduce__(self) -> NoReturn:
        raise UnsupportedOperationError(
            "a remote tensor stays with its Core and cannot be copied or pickled; send "
            "tensor.to_host()."
        )

    def to_host(self) -> np.ndarray:
        """Return a copy on the host.

        Raises
        ------
        DeviceLostError
            The device is lost.
        TensorError
            The tensor was closed, or the device was restarted.
        """
        return self.memory.fetch(self.kept)

    def join_rows(self, joins: Joining) -> dict[str, Value]:
        """Build tensors from rows of remote tensors; see `RemoteMemory.join`."""
        return self.memory.join(joins)

    def copy_from(self, source_tensor: ArrayLike | RemoteTensor) -> None:
        """Replace the contents with those of an array or tensor of the same shape and type.

        A remote tensor of the same Core is not copied: both objects then refer to its memory.

        Raises
        ------
        TensorShapeError, TensorTypeError
            The source has another shape or type.
        DeviceLostError
            The device is lost.
        """
        bundle = self.kept.bundle
        array = source_tensor
        if not isinstance(array, RemoteTensor):
            array = np.asarray(array)
        self.check_shape(array)
        if array.dtype != self.dtype:
            raise TensorTypeError(
                f"tensor on {bundle.device}: expected dtype {self.dtype}, got {array.dtype}; pass "
                f"array.astype({self.dtype}), or create a tensor of that dtype."
            )
        if isinstance(array, DeviceTensor) and array.memory is self.memory:
            self._reference = array.kept
        else:
            contents = array.to_host() if isinstance(array, RemoteTensor) else array
            self._reference = self.memory.put(bundle.device, bundle.address, contents)

    def close(self) -> None:
        """Release the tensor; the device frees it after the last request that reads it."""
        self._reference = None


@cache
def dtype_of(kind: str) -> np.dtype:
    """Return the dtype of an element type's name, as messages carry it."""
    return Type(kind).to_dtype()


def kept_specs(outputs: Sequence[str], run: StageTiming) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the element types and shapes, by name, of a stage run's resident outputs.

    Raises BlobError: the stage has no such outputs.
    """
    try:
        return {outputs[i]: (kind, shape) for kind, shape, at in run.resident for i in at}
    except IndexError as error:
        raise BlobError(
            f"{run}: expected resident outputs among {outputs}, got an index out of range."
        ) from error


def lost_tensor(port: str, bundle: DeviceBundle) -> TensorLostError:
    """Return the error of a request whose resident input was lost with its device."""
    return TensorLostError(
        f"input {port!r} was lost with device {bundle.device}. Create the tensor again; for a "
        "state, call reset_state().",
        port=port,
        device=bundle.device,
    )

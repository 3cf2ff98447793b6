"""What stands for tensors that a device keeps, and for what is made of rows of them."""

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

#: Tensors that are to be made of rows of others, by name, and how rows lie.
Joining = Mapping[str, tuple[Sequence[tuple[RemoteTensor, Sequence[int]]], RowLayout]]
_numbers = itertools.count()


class Memory(Protocol):
    """What a bundle and its tensors ask of their client's memory."""

    def let_go(self, address: str, key: str) -> None:
        """Take in that nobody holds a bundle; finalizers call this anywhere, locks held or not."""

    def put(self, device: str, address: str, array: np.ndarray) -> ResidentTensor[DeviceBundle]:
        """Have a device keep a copy of an array."""

    def fetch(self, kept: ResidentTensor[DeviceBundle]) -> np.ndarray:
        """Return a copy of a tensor."""

    def join(self, made: Joining) -> dict[str, Value]:
        """Return tensors made of rows of others."""


class Past:
    """A run or a join that made states.

    `before`: what its own states were made by.
    `restore`: has bundles made again that it, or what came before it, made.
    """

    __slots__ = ("nbytes", "number", "restore")

    def __init__(
        self, before: Iterable[Past], nbytes: int, restore: Callable[[Sequence[DeviceBundle]], None]
    ) -> None:
        self.restore = restore
        #: Ascends: those before it have lower ones.
        self.number = next(_numbers)
        #: Of all that is kept for it and for those before it.
        self.nbytes: int = nbytes + sum(past.nbytes for past in set(before))


class DeviceBundle(TensorBundle):
    """Tensors in a device's process; freed there once nothing here holds this any more."""

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
        #: What made it, if it can be made again.
        self.past: Past | None = None
        #: Whether its device has still to make it; about how large its past will be, if it has one.
        self.is_awaited = False
        self.past_nbytes: int | None = None
        #: Those of them that were answered as well.
        self.copies: Mapping[str, Value] = {}

    def __del__(self) -> None:
        self.memory.let_go(self.address, self.key)

    def move_to(self, other: DeviceBundle) -> None:
        """Be where another is, which was made as this one was; that is then where this was."""
        self.device, other.device = other.device, self.device
        self.address, other.address = other.address, self.address
        self.key, other.key = other.key, self.key

    def tensor(self, name: str) -> DeviceTensor:
        """Return one of them as its user sees it."""
        return DeviceTensor(ResidentTensor(self, name))


class DeviceTensor(RemoteTensor):
    """A tensor that a device's process keeps for its client: input and output of requests.

    It is freed once it is closed or dropped and no request reads it any more.
    """

    by_reference = True

    def __init__(self, kept: ResidentTensor[DeviceBundle]) -> None:
        kind, self.shape = kept.bundle.specs[kept.name]
        self.dtype = dtype_of(kind)
        self.memory: Final = kept.bundle.memory
        self._kept: ResidentTensor[DeviceBundle] | None = kept

    @property
    def kept(self) -> ResidentTensor[DeviceBundle]:
        """What stands for it, TensorError once it is closed."""
        if self._kept is None:
            raise TensorError(
                "a remote tensor was closed; make another with create_tensor, or keep the output "
                "again."
            )
        return self._kept

    @property
    def device(self) -> str:  # type: ignore[override]  # read-only: it is where it was made last
        """Whose process it is in."""
        return self.kept.bundle.device

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._kept is None

    def __repr__(self) -> str:
        where = "closed" if self._kept is None else f"on {self._kept.bundle.device}"
        return f"<DeviceTensor {self.dtype}{list(self.shape)} {where}>"

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
            Its device is gone.
        TensorError
            It was closed, or the device was started again.
        """
        return self.memory.fetch(self.kept)

    def joined(self, made: Joining) -> dict[str, Value]:
        """Return tensors made of rows of such ones, by name; see `RemoteMemory.join`."""
        return self.memory.join(made)

    def copy_from(self, source_tensor: ArrayLike | RemoteTensor) -> None:
        """Take over the contents of an array or tensor of the same shape and type.

        A remote tensor of the same Core is not copied: both then are one, where that one is.

        Raises
        ------
        TensorShapeError, TensorTypeError
            It is of another shape or type.
        DeviceLostError
            The device is gone.
        """
        bundle = self.kept.bundle
        array = source_tensor
        if not isinstance(array, RemoteTensor):
            array = np.asarray(array)
        self.check_shape(array)
        if array.dtype != self.dtype:
            raise TensorTypeError(
                f"a tensor on {bundle.device} has dtype {self.dtype}, got {array.dtype}; give "
                f"array.astype({self.dtype}), or create one that fits."
            )
        if isinstance(array, DeviceTensor) and array.memory is self.memory:
            self._kept = array.kept
        else:
            contents = array.to_host() if isinstance(array, RemoteTensor) else array
            self._kept = self.memory.put(bundle.device, bundle.address, contents)

    def close(self) -> None:
        """Have it freed, once no request in flight reads it; again is harmless."""
        self._kept = None


@cache
def dtype_of(kind: str) -> np.dtype:
    """Return the dtype of an element type, as messages have it."""
    return Type(kind).to_dtype()


def kept_specs(outputs: Sequence[str], run: StageTiming) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return element type and shape, by name, of what the device keeps of a stage's run.

    Raises BlobError: the stage has no such outputs.
    """
    try:
        return {outputs[i]: (kind, shape) for kind, shape, at in run.resident for i in at}
    except IndexError as error:
        raise BlobError(f"{run} keeps outputs that its stage has not: {outputs}.") from error


def as_answered(name: str, value: Value) -> Value:
    """Return an output of stages as its caller has it: as the copy that came, if one did."""
    return value.bundle.copies.get(name, value) if type(value) is ResidentTensor else value


def lost_tensor(port: str, bundle: DeviceBundle) -> TensorLostError:
    """Return the error of a request that cannot have an input, as who kept it is gone."""
    return TensorLostError(
        f"input {port!r} was kept by device {bundle.device}, which is gone, and the tensor with "
        "it. Make it anew; of a state, reset_state().",
        port=port,
        device=bundle.device,
    )

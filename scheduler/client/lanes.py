"""Lanes of a client: the packed messages that a deployment sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.errors import BlobError
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.channel import LaneChannel
from hetero.scheduler.channels.lane import (
    TO_CLIENT,
    TO_STAGE,
    LaneHead,
    input_mask,
    lane_key,
    read_tensors,
    read_timings,
    slice_timings,
)
from hetero.scheduler.channels.shared_memory import SlotError
from hetero.scheduler.types.plan import Stage

#: Creates a named tuple without the call of a Python function: each message needs one.
_new: Final[Callable[..., Any]] = tuple.__new__


class PartialResult(NamedTuple):
    """Some outputs of the model, and the timings of the stages that computed them."""

    request_id: int
    attempt: int
    outputs: Mapping[str, Value]
    timings: Sequence[StageTiming]


class ClientLanes:
    """Lanes of one deployment.

    `stages`: returns the stages of the placement.
    `output_names`: the model's outputs.
    `inputs_of`: returns the inputs that a stage receives, in order.
    `on_result`: called with each part of a result.
    `on_unreadable`: called with request id, attempt and error for each message that is damaged.
    """

    def __init__(
        self,
        deployment: str,
        channel: LaneChannel,
        stages: Callable[[], Sequence[Stage]],
        output_names: Sequence[str],
        inputs_of: Callable[[int], Sequence[str]],
        on_result: Callable[[PartialResult], None],
        on_unreadable: Callable[[int, int, BlobError], None],
    ) -> None:
        self.key = lane_key(deployment)
        self._channel = channel
        self._stages = stages
        self._output_names = frozenset(output_names)
        self._inputs_of = inputs_of
        self._on_result = on_result
        self._on_unreadable = on_unreadable
        #: (stage, names of the sent tensors) -> input mask; 0 if it has too few bits.
        self._masks: dict[tuple[int, tuple[str, ...]], int] = {}
        #: The stages with the results of `_read_stages`.
        self._outputs: tuple[Sequence[Stage], list[str], list[list[str]]] = ((), [], [])

    def clear(self) -> None:
        """Forget the inputs of the stages; call it after a change of the placement."""
        self._masks.clear()

    def copy_to_shared_memory(self, array: np.ndarray) -> np.ndarray | None:
        """Copy an input to memory that devices can read; None if there is no room."""
        return self._channel.copy_to_shared_memory(array)

    def send(
        self,
        address: str,
        request: Request,
        stage: Stage,
        names: tuple[str, ...],
        inputs: Mapping[str, Value],
    ) -> bool:
        """Send inputs of the model to a stage; return False if they do not fit into a lane."""
        key = (stage.index, names)
        mask = self._masks.get(key)
        if mask is None:
            order = list(self._inputs_of(stage.index))
            mask = self._masks[key] = input_mask([order.index(name) for name in names])
        if not mask:
            return False
        attempt, route = request.attempt, request.route
        fields = (TO_STAGE, 0, 0, self.key, request.id, attempt, stage.index, route, mask, 0)
        head: LaneHead = _new(LaneHead, fields)
        tensors = [*map(inputs.__getitem__, names)]
        return self._channel.send_lane(address, head, b"", tensors)

    def receive(self, data: bytes, head: LaneHead) -> None:
        """Process a packed message for this deployment.

        Raises SlotError: a tensor in shared memory is lost.
        """
        try:
            result = self._read(data, head)
        except SlotError:  # the message is lost
            raise
        except BlobError as error:
            self._on_unreadable(head.request_id, head.attempt, error)
            return
        self._on_result(result)

    def _read(self, data: bytes, head: LaneHead) -> PartialResult:
        kind, _, _, _, request_id, attempt, stage, *_ = head
        tensors = read_tensors(data, head, self._channel.stored_tensor)
        stages, devices, results = self._outputs
        if stages is not self._stages():  # the first message, or the placement has changed
            devices, results = self._read_stages()
        if kind != TO_CLIENT or stage >= len(results):
            raise BlobError(
                f"packed message of kind {kind} from stage {stage}; expected kind {TO_CLIENT} and "
                f"a stage below {len(results)}."
            )
        timings = read_timings(slice_timings(data, head), devices)
        outputs: Mapping[str, Value] = {}
        if tensors:
            names = results[stage]
            if len(names) != len(tensors):
                raise BlobError(
                    f"packed message with {len(tensors)} tensors from stage {stage}; expected "
                    f"{len(names)} outputs of the model."
                )
            outputs = dict(zip(names, tensors, strict=True))
        fields = (request_id, attempt, outputs, timings)
        result: PartialResult = _new(PartialResult, fields)
        return result

    def _read_stages(self) -> tuple[list[str], list[list[str]]]:
        """Return the device of each stage, and the outputs of the model that it sends."""
        stages = self._stages()
        devices = [stage.device for stage in stages]
        results = [
            [name for name in stage.outputs if name in self._output_names] for stage in stages
        ]
        self._outputs = stages, devices, results
        return devices, results

"""Channel inside a process: values are passed by reference, read-only."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.request.request import Request
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.types.messages import Dropped, Message, Outputs, Task, Values

TASK = Task(Request(id=1, attempt=1), 0)


def test_values_are_passed_by_reference_and_read_only():
    switchboard = Switchboard()
    came: list[Message] = []
    switchboard.connect("device", came.append)
    client = switchboard.connect("client", came.append)
    x = np.arange(3)
    client.send("device", Values(TASK, {"x": x, "list": [x], "map": {1: x}, "none": None}))
    (message,) = came
    assert isinstance(message, Values)
    for array in (message.tensors["x"], message.tensors["list"][0], message.tensors["map"][1]):
        assert np.shares_memory(array, x)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    x[0] = 7  # the sender's array stays writable
    # Only its receiver reads a result, so it is writable.
    client.send("client", Outputs(TASK, {"y": x}))
    assert isinstance(came[1], Outputs)
    assert came[1].tensors["y"] is x


def test_message_to_an_unknown_address_is_dropped():
    switchboard = Switchboard()
    came: list[Message] = []
    device = switchboard.connect("device", came.append)
    device.close()
    device.close()
    switchboard.connect("client", came.append).send("device", Dropped(TASK.request))
    assert not came

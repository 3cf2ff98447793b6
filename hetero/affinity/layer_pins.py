"""Pins of whole layers by number: ``{"0-15": "ORT.0", "16-31": "ORT.1"}``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from hetero.affinity.layers import numbered_layers
from hetero.devices.model.model import Model

#: Text for the nodes after the last layer: the norm, the logits and the sampling.
HEAD: Final = "head"
_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?")


def layer_pins(
    model: Model, pins: Mapping[str, str]
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Match layer numbers to nodes; return the pinned nodes and the problems.

    `pins`: numbers -> device name; numbers are ``3``, ``0-15`` or ``head`` for the nodes after the
        last layer, which otherwise run on the device of the last layer.
    Returns: node name -> layer and device; a sentence for each unknown, repeated or missing layer.
    """
    if not pins:
        return {}, []
    groups = numbered_layers(model)
    if not groups:
        problem = (
            "the model has no layers: it has neither KV caches as states, as `hetero generate` and "
            "hetero.read_decoder make them, nor numbers in node names, such as /layers.0/; pin "
            "nodes by name"
        )
        return {}, [problem]
    count = len(groups) - 1
    devices: dict[int, str] = {}
    problems = []
    for text, device in pins.items():
        match = _RANGE.fullmatch(text)
        if text == HEAD:
            numbers = range(count, count + 1)
        elif match is None or int(match[2] or match[1]) < int(match[1]):
            problems.append(f"{text!r}: expected a number, a range such as 0-15, or head")
            continue
        else:
            numbers = range(int(match[1]), int(match[2] or match[1]) + 1)
            if numbers[-1] >= count:
                problems.append(f"{text!r}: the model has layers 0-{count - 1} only")
                numbers = range(numbers[0], count)
        if repeated := [n for n in numbers if n in devices]:
            problems.append(f"{text!r}: {number_ranges(repeated)} has a device already; keep one")
        devices |= dict.fromkeys(numbers, device)
    if missing := [n for n in range(count) if n not in devices]:
        ranges = number_ranges(missing)
        problems.append(f"no device for layer {ranges}; add one, such as {ranges}=DEVICE")
    if problems:
        return {}, problems
    devices.setdefault(count, devices[count - 1])
    return {
        name: (HEAD if number == count else str(number), devices[number])
        for number, names in enumerate(groups)
        for name in names
    }, []


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text: 0-3, 5."""
    # The difference from the index is constant among consecutive numbers.
    runs = [
        [n for _, n in group]
        for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)

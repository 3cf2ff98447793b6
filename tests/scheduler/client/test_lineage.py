"""Recomputation of a run by the stages of another plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import TensorLostError
from hetero.devices.request.response import StageTiming
from hetero.scheduler.client.device_tensors import DeviceBundle
from hetero.scheduler.client.lineage import RunNode, steps
from hetero.scheduler.types.placement import alone
from tests.scheduler.models import Line, build, cut

LINES: Sequence[Line] = [
    ("Neg", "first", ["x"], "between"),
    ("Add", "second", ["between", "past"], "present"),
]
#: Duration of each stage.
CUTS: Mapping[str, Mapping[tuple[str, ...], float]] = {
    "whole": {("first", "second"): 3.0},
    "parts": {("first",): 2.0, ("second",): 1.0},
}


class Forgetful:
    """Memory that stores nothing."""

    def let_go(self, address: str, key: str) -> None:
        """Ignore the release of a bundle."""


@pytest.mark.parametrize("made_by", CUTS)
@pytest.mark.parametrize("again_by", CUTS)
def test_expected_run_time_applies_to_another_plan(made_by: str, again_by: str) -> None:
    model = build(LINES, ["present"], inputs=["x", "past"])
    plans = {name: cut(model, *(("A", part) for part in parts))[0] for name, parts in CUTS.items()}
    took = enumerate(CUTS[made_by].values())
    runs = [StageTiming(number, "A", 0.0, 0.0, seconds) for number, seconds in took]
    memory: Any = Forgetful()
    bundle = DeviceBundle(memory, "A", "a", "k", {"present": ("tensor(float)", (1,))})
    inputs = dict.fromkeys(("x", "past"), np.zeros(1, np.float32))
    bundle.lineage = RunNode(inputs, {}, 0, alone(plans[made_by]).routes[0], runs, lambda _: None)

    def again(most_s: float) -> Any:
        return steps([bundle], plans[again_by], lambda *_: False, lambda _: True, most_s)

    [step], _ = again(3.1)
    assert step.stages == tuple(range(len(CUTS[again_by])))
    with pytest.raises(TensorLostError, match="their runs take"):
        again(2.9)

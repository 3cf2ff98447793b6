"""Lineage of states: the steps that recompute them, their time limit, and their size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import TensorLostError
from hetero.devices.plugin.remote_memory import ResidentTensor
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.response import StageTiming
from hetero.scheduler.client.device_tensors import DeviceBundle, LineageNode
from hetero.scheduler.client.lineage import (
    JoinNode,
    Origin,
    RunNode,
    copy_value,
    lineage_nbytes,
    steps,
)
from hetero.scheduler.types.placement import single_placement
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

    def schedule_free(self, address: str, key: str) -> None:
        """Ignore the release of a bundle."""


@pytest.mark.parametrize("made_by", CUTS)
@pytest.mark.parametrize("again_by", CUTS)
def test_expected_run_time_applies_to_another_plan(made_by, again_by):
    model = build(LINES, ["present"], inputs=["x", "past"])
    plans = {name: cut(model, *(("A", part) for part in parts))[0] for name, parts in CUTS.items()}
    took = enumerate(CUTS[made_by].values())
    runs = [StageTiming(number, "A", 0.0, 0.0, seconds) for number, seconds in took]
    memory: Any = Forgetful()
    bundle = DeviceBundle(memory, "A", "a", "k", {"present": ("tensor(float)", (1,))})
    inputs = dict.fromkeys(("x", "past"), np.zeros(1, np.float32))
    bundle.lineage = RunNode(
        inputs, {}, 0, single_placement(plans[made_by]).routes[0], runs, lambda _: None
    )

    def again(most_s: float) -> Any:
        return steps([bundle], plans[again_by], lambda *_: False, lambda _: True, most_s)

    [step], _ = again(3.1)
    assert step.stages == tuple(range(len(CUTS[again_by])))
    with pytest.raises(TensorLostError, match="their runs take"):
        again(2.9)


# A state machine of two stages: A computes h = -x, B computes present = h + past.
PLAN = cut(build(LINES, ["present"], inputs=["x", "past"]), ("A", ["first"]), ("B", ["second"]))[0]
ROUTE = single_placement(PLAN).routes[0]
MEMORY: Any = Forgetful()


def bundle_at(address: str, name: str, lineage: LineageNode | None = None) -> DeviceBundle:
    bundle = DeviceBundle(MEMORY, address.upper(), address, "k", {name: ("tensor(float)", (1,))})
    bundle.lineage = lineage
    return bundle


def run_node(past: Any, seconds: tuple[float, float] = (2.0, 1.0)) -> RunNode:
    """Return the node of a run whose stages took some seconds; h was sent from a to b."""
    runs = [StageTiming(i, device, 0.0, 5.0, 5.0 + seconds[i]) for i, device in enumerate("AB")]
    transfers = {"between": ResidentTensor(bundle_at("a", "between"), "between")}
    inputs = {"x": np.zeros(1, np.float32), "past": past}
    return RunNode(inputs, transfers, 4, ROUTE, runs, lambda _: None)


def steps_of(
    *bundles: DeviceBundle, lost: str = "b", most_s: float = 99.0, given: str = ""
) -> tuple[list[tuple[LineageNode, set[str], tuple[int, ...]]], dict[Origin, int]]:
    found, uses = steps(
        bundles, PLAN, lambda _, name: name == given, lambda address: address in lost, most_s
    )
    return [(step.lineage, set(step.names), step.stages) for step in found], dict(uses)


def test_lost_state_is_recomputed_from_the_first_run():
    first = run_node(np.zeros(1, np.float32))
    second = run_node(Origin(first, "present"))
    found, uses = steps_of(bundle_at("b", "present", second))
    # A still has what it sent, so B's stage alone runs again.
    assert found == [(first, {"present"}, (1,)), (second, {"present"}, (1,))]
    assert uses == {Origin(first, "present"): 1, Origin(second, "present"): 1}
    assert steps_of(bundle_at("b", "present", first), lost="ab")[0] == [
        (first, {"present"}, (0, 1))
    ]
    constant = steps_of(bundle_at("b", "present", first), lost="ab", given="between")[0]
    assert constant == [(first, {"present"}, (1,))]


def test_state_that_its_device_also_sent_is_computed_again():
    node = run_node(np.zeros(1, np.float32))
    node.transfers["present"] = ResidentTensor(bundle_at("b2", "present"), "present")
    assert steps_of(bundle_at("b", "present", node))[0] == [(node, {"present"}, (1,))]


def test_joined_states_are_recomputed_once_for_all_their_readers():
    runs = [run_node(np.zeros(1, np.float32)) for _ in range(2)]
    tensors = [ResidentTensor(bundle_at("b", "present", run), "present") for run in runs]
    rows = [(tensors[0], (0,)), (tensors[1], (0, 1)), (tensors[0], (2,))]
    join = JoinNode.of({"past": (rows, RowLayout(0))})
    assert join is not None
    after = [run_node(Origin(join, "past")) for _ in range(2)]
    found, uses = steps_of(*(bundle_at("b", "present", run) for run in after))
    assert found == [
        (runs[0], {"present"}, (1,)),
        (runs[1], {"present"}, (1,)),
        (join, {"past"}, ()),
        (after[0], {"present"}, (1,)),
        (after[1], {"present"}, (1,)),
    ]
    assert uses == {
        Origin(runs[0], "present"): 2,  # two parts of the join
        Origin(runs[1], "present"): 1,
        Origin(join, "past"): 2,
        Origin(after[0], "present"): 1,
        Origin(after[1], "present"): 1,
    }
    unknown = ResidentTensor(bundle_at("b", "present"), "present")
    assert JoinNode.of({"past": ([*rows, (unknown, (0,))], RowLayout(0))}) is None
    whole, partial = (rows, RowLayout(0)), ([*rows, (unknown, (0,))], RowLayout(0))
    assert JoinNode.of({"past": whole, "other": partial}) is None
    assert JoinNode.of({}) is None


def test_recomputation_has_a_time_limit():
    first = run_node(np.zeros(1, np.float32), (2.0, 1.0))
    lost_bundle = bundle_at("b", "present", run_node(Origin(first, "present"), (4.0, 0.5)))
    # B's stage twice, 1.0 + 0.5 s, and half a millisecond of messages each.
    assert len(steps_of(lost_bundle, most_s=1.5011)[0]) == 2
    with pytest.raises(TensorLostError, match=r"1\.501 s, more than the limit of 1\.501 s"):
        steps_of(lost_bundle, most_s=1.5009)
    # Both stages twice, 3.0 + 4.5 s, and 4 * 0.5 ms.
    assert len(steps_of(lost_bundle, lost="ab", most_s=7.5021)[0]) == 2
    with pytest.raises(TensorLostError, match=r"7\.502 s"):
        steps_of(lost_bundle, lost="ab", most_s=7.5019)


def test_state_without_lineage_or_producer_is_not_recomputed():
    with pytest.raises(TensorLostError, match="no lineage") as caught:
        steps_of(bundle_at("b", "present"))
    assert caught.value.data["device"] == "B"
    with pytest.raises(TensorLostError, match="no stage of the current plan produces 'other'"):
        steps_of(bundle_at("b", "other", run_node(np.zeros(1, np.float32))))


def test_size_of_a_lineage_counts_each_ancestor_once():
    # A run's record counts 2,048 bytes; x and a first past have 4 bytes each, h 4 more.
    first = run_node(np.zeros(1, np.float32))
    assert first.nbytes == 2048 + 4 + 4 + 4
    second = run_node(Origin(first, "present"))
    assert second.nbytes == first.nbytes + 2048 + 4 + 4
    tensor = ResidentTensor(bundle_at("b", "present", second), "present")
    other = ResidentTensor(bundle_at("b", "present", first), "present")
    join = JoinNode.of({"past": ([(tensor, (0,)), (tensor, (1,)), (other, (0,))], RowLayout(0))})
    assert join is not None
    assert join.nbytes == 2048 + second.nbytes + first.nbytes
    array = np.zeros(9, np.float32)
    assert lineage_nbytes({"x": array}) == 0
    assert lineage_nbytes({"x": array, "a": tensor, "b": tensor}) == second.nbytes
    assert lineage_nbytes({"a": tensor, "b": other}) == second.nbytes + first.nbytes
    awaited = [bundle_at("b", "present") for _ in range(2)]
    inputs = {str(i): ResidentTensor(bundle, "present") for i, bundle in enumerate(awaited)}
    awaited[0].lineage_nbytes, awaited[1].lineage_nbytes = 70, 30
    assert lineage_nbytes({**inputs, "a": other}) == 70 + first.nbytes  # of one request
    awaited[1].lineage_nbytes = None
    assert lineage_nbytes(inputs) is None


def test_copies_of_inputs_are_deep_and_read_only():
    array = np.arange(6.0).reshape(2, 3)[:, ::2]
    value = {"a": [array, (array, "text")], "n": 3}
    copy: Any = copy_value(value)
    array[:] = -1
    nested = copy["a"][0], copy["a"][1][0]
    for one in nested:
        assert one.tolist() == [[0, 2], [3, 5]]
        assert not one.flags.writeable
    assert (copy["a"][1][1], copy["n"]) == ("text", 3)
    column_major = np.asfortranarray(np.ones((2, 3)))
    assert copy_value(column_major).flags.f_contiguous

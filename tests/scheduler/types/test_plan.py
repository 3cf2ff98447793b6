"""Plans: validation, derived values and serialization."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from hetero.devices.errors import BlobError, PlanError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler import Plan, Stage, Wire
from hetero.scheduler.types.plan import unpack_spec

GOLDEN = Path(__file__).parent / "golden" / "plan_v1.bin"
X = TensorSpec("x", "tensor(float)", ("n", 3, None))
Y = TensorSpec("y", "seq(tensor(float))")
W = TensorSpec("w", "", None)


def diamond_plan() -> Plan:
    stages = (
        Stage(0, "A", ("x",), ("a",), ("n0",)),
        Stage(1, "B", ("a",), ("b",), ("n1",)),
        Stage(2, "A", ("a", "x"), ("c", "unused"), ("n2", "n3")),
        Stage(3, "B", ("b", "c"), ("y",), ("n4",)),
    )
    return Plan("m", (X,), (Y, X, W, Y), stages, ("x",), ("w",))


def test_derived_facts_of_a_diamond():
    plan = diamond_plan()
    assert plan.wires == (Wire("a", 0, 1), Wire("a", 0, 2), Wire("b", 1, 3), Wire("c", 2, 3))
    assert plan.consumers == {"x": (0, 2), "a": (1, 2), "b": (3,), "c": (3,)}
    assert plan.levels == (0, 1, 1, 2)
    assert plan.devices == ("A", "B")
    assert plan.output_names == ("y", "x", "w")


def test_equal_plans_have_equal_bytes_and_round_trip():
    plan = diamond_plan()
    assert Plan.from_bytes(plan.to_bytes()) == plan
    assert diamond_plan().to_bytes() == plan.to_bytes()


def test_work_of_stages_survives_serialization():
    plan = diamond_plan()
    stages = tuple(replace(s, work=w) for s, w in zip(plan.stages, (1.0, 0.0, 2.5), strict=False))
    data = replace(plan, stages=(*stages, plan.stages[3])).to_bytes()
    assert [stage.work for stage in Plan.from_bytes(data).stages] == [1.0, 0.0, 2.5, 1.0]


@pytest.mark.parametrize("work", [-1.0, float("nan"), float("inf"), "much", None, [1.0]])
def test_plan_with_invalid_work_is_refused(work):
    form, version, body = msgpack.unpackb(diamond_plan().to_bytes())
    body[3][1].append(work)
    with pytest.raises(BlobError, match="work of a stage"):
        Plan.from_bytes(msgpack.packb([form, version, body]))


def test_golden_plan_is_read_and_written_the_same():
    data = GOLDEN.read_bytes()
    assert Plan.from_bytes(data) == diamond_plan()
    assert diamond_plan().to_bytes() == data


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((Stage(0, "A", ("q",), ("y",), ()),), "'q'"),
        ((Stage(0, "A", ("b",), ("y",), ()), Stage(1, "A", ("x",), ("b",), ())), "stage 0"),
        (
            (Stage(0, "A", ("x",), ("y",), ()), Stage(1, "A", ("x",), ("y",), ())),
            "already an output of stage 0",
        ),
        ((Stage(0, "A", ("x",), ("x",), ()),), "already an input of the model"),
        ((Stage(1, "A", ("x",), ("y",), ()),), "index"),
        ((Stage(0, "A", ("x",), ("z",), ()),), r"\['y'\] have no source"),
    ],
)
def test_invalid_plan_error_names_stage_and_tensor(stages, message):
    with pytest.raises(PlanError, match=message):
        Plan("m", (X,), (Y,), stages)


def test_invalid_passthrough_and_constant_outputs_are_refused():
    plan = diamond_plan()
    with pytest.raises(PlanError, match="passthrough"):
        replace(plan, passthrough=("a",))
    with pytest.raises(PlanError, match="constant"):
        replace(plan, constant_outputs=("w", "y"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"hello",
        msgpack.packb(["hetero-plan", 99, []]),
        msgpack.packb(["hetero-plan", 1, [1, 2]]),
        msgpack.packb(["hetero-plan", 1, ["m", [["x"]], [], [], [], []]]),
    ],
)
def test_foreign_bytes_are_refused(data):
    with pytest.raises(BlobError):
        Plan.from_bytes(data)


def test_plan_of_another_version_is_refused_by_number():
    form, _, body = msgpack.unpackb(diamond_plan().to_bytes())
    with pytest.raises(BlobError, match="version 7"):
        Plan.from_bytes(msgpack.packb([form, 7, body]))


@pytest.mark.parametrize(
    "entry", [["x", 7, [1]], ["x", "tensor(float)", [2**63]], ["x", "tensor(float)", 3], [], "xyz"]
)
def test_damaged_port_is_a_value_error(entry):
    with pytest.raises(ValueError, match="Expected"):
        unpack_spec(entry)

"""Results of compatibility checks: verdicts, texts, JSON, and runtime requirements."""

from __future__ import annotations

import json

import pytest

from hetero.cache.check import (
    BlobCheck,
    StageCheck,
    meets_requirements,
    reasons_by_stage,
    runtime_requirements,
)
from hetero.scheduler.types.device_descriptor import DeviceDescriptor

WHOLE = StageCheck(0, "A", "A")
OTHER = StageCheck(1, "B", "A", "of B 1")
SAME = StageCheck(2, "A", "C", "of B 1")
LAST = StageCheck(3, "A", "A", "with o")


@pytest.mark.parametrize(
    ("check", "verdict", "text"),
    [
        (BlobCheck("net", (WHOLE, WHOLE)), "runs", "net runs as it is on A."),
        (
            BlobCheck("net", (WHOLE, OTHER, SAME, LAST)),
            "recompiles",
            "net runs on A, C after recompilation of stages 1, 2, 3 (of 4): of B 1; with o.",
        ),
        (BlobCheck("net", (WHOLE,), "no device"), "refused", "refused: no device"),
        (BlobCheck("", (), "not a blob"), "refused", "refused: not a blob"),
        (BlobCheck("net"), "runs", "net runs as it is on ."),
    ],
)
def test_check_has_a_verdict_and_a_text(check, verdict, text):
    assert (check.verdict, str(check)) == (verdict, text)
    document = check.to_json()
    assert (document["name"], document["verdict"]) == (check.name, verdict)
    assert document["refusal"] == (check.refusal or None)
    assert document["stages"] == [
        {"index": s.index, "device": s.device, "target": s.target, "reason": s.reason or None}
        for s in check.stages
    ]
    assert check.recompiled == tuple(s for s in check.stages if s.reason)


def test_stages_are_grouped_by_device_and_reason():
    more = StageCheck(4, "Z", "A", "of B 1")
    assert reasons_by_stage((WHOLE, OTHER, SAME, LAST, more)) == {
        ("A", "of B 1"): [1, 4],
        ("C", "of B 1"): [2],
        ("A", "with o"): [3],
    }


def descriptor(name: str, version: str = "1", fingerprint: str = "f") -> DeviceDescriptor:
    return DeviceDescriptor(
        name, name.partition(".")[0], "0", "n", version=version, fingerprint=fingerprint
    )


BOTH = [descriptor("A"), descriptor("B.1")]


@pytest.mark.parametrize(
    ("device", "available", "expected"),
    [
        ("HETERO", BOTH, "SUPPORTED"),
        ("HETERO", [*BOTH, descriptor("C")], "SUPPORTED"),
        ("HETERO", [BOTH[0], descriptor("B.1", "2")], "UNSUPPORTED"),
        ("HETERO", [BOTH[0], descriptor("B.1", fingerprint="g")], "UNSUPPORTED"),
        ("HETERO", [descriptor("A", "2"), BOTH[1]], "UNSUPPORTED"),
        ("HETERO", BOTH[:1], "UNSUPPORTED"),
        ("A", BOTH, "NOT_APPLICABLE"),  # the export needs both
    ],
)
def test_export_requires_equal_devices(device, available, expected):
    requirements = runtime_requirements(BOTH)
    assert json.loads(requirements) == {"devices": {"A": ["A", "1", "f"], "B.1": ["B", "1", "f"]}}
    assert meets_requirements(requirements, device, available) == expected


def test_requirements_of_one_device_apply_to_it_alone():
    requirements = runtime_requirements(BOTH[:1])
    results = [meets_requirements(requirements, device, BOTH) for device in ("A", "B.1", "HETERO")]
    assert results == ["SUPPORTED", "NOT_APPLICABLE", "SUPPORTED"]


@pytest.mark.parametrize(
    "requirements", [None, "", "{", "[]", "{}", '{"devices": 1}', "[" * 100_000, 3, '"devices"']
)
def test_other_texts_are_not_applicable(requirements):
    assert meets_requirements(requirements, "HETERO", BOTH) == "NOT_APPLICABLE"

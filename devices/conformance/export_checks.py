"""Checks of the runtime model, profiles, export and import."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.devices.conformance.expectation import expect
from hetero.devices.conformance.query_checks import (
    compiled_samples,
    expect_outputs,
    supported_samples,
)
from hetero.devices.conformance.subject import Subject
from hetero.devices.errors import UnsupportedOperationError
from hetero.devices.model.model import Node

_NOTES = ("layerType", "execOrder", "implType", "originalLayersNames", "execTimeMcs")


def check_runtime_model_covers_the_model(subject: Subject) -> None:
    """Executed nodes have distinct names, all notes, and stand for every node that matters."""
    for sample, compiled in compiled_samples(subject):
        nodes = compiled.get_runtime_model().nodes
        names = [node.name for node in nodes]
        expect(len(set(names)) == len(names), f"{sample.name}: executed names {names} repeat")
        covered: set[str] = set()
        for node in nodes:
            absent = [key for key in _NOTES if key not in node.metadata]
            expect(not absent, f"{sample.name}: {node.name} has no {absent}")
            expect(node.metadata["execTimeMcs"] == "not_executed", "a time before any run")
            covered |= set(node.metadata["originalLayersNames"].split(","))
        live = _live(sample.model.nodes, {port.name for port in sample.model.outputs})
        expect(live <= covered, f"{sample.name}: {live - covered} are in no executed node")


def check_profile_has_stages_and_times(subject: Subject) -> None:
    """PERF_COUNT times stages and nodes; without it rows are there and not run."""
    sample = supported_samples(subject)[0]
    compiled = subject.compile_model(sample.model, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    rows = request.profiling_info
    expect(len(rows) >= 5, f"before a run: {len(rows)} rows, wanted the five stages at least")
    expect({row.status for row in rows} == {"NOT_RUN"}, "rows are run before any run")
    request.infer(dict(sample.inputs))
    executed = [row for row in request.profiling_info if row.status == "EXECUTED"]
    expect(len(executed) >= 6, "after a run: five stages and a node at least are executed")
    times = [n.metadata["execTimeMcs"] for n in compiled.get_runtime_model().nodes]
    timed = [time for time in times if time != "not_executed"]
    expect(timed and all(float(time) >= 0 for time in timed), f"runtime model times {times}")
    compiled.close()


def check_export_and_import_give_the_same(subject: Subject) -> None:
    """An exported model, imported, has the same ports and answers; or export says it cannot."""
    for sample, compiled in compiled_samples(subject):
        try:
            payload = compiled.export_model()
        except UnsupportedOperationError:
            expect(
                "EXPORT_IMPORT" not in subject.get_property("OPTIMIZATION_CAPABILITIES"),
                "EXPORT_IMPORT is claimed, but a model cannot be exported",
            )
            continue
        again = subject.import_model(payload, sample.model)
        expect(again.inputs == compiled.inputs, f"{sample.name}: other inputs")
        expect(again.outputs == compiled.outputs, f"{sample.name}: other outputs")
        result = again(dict(sample.inputs))
        expect_outputs(subject, sample, result, ", imported")
        again.close()


def _live(nodes: Sequence[Node], wanted: set[str]) -> set[str]:
    """Return the names of nodes that outputs depend on."""
    live: set[str] = set()
    for node in reversed(nodes):
        if wanted & set(node.writes):
            live.add(node.name)
            wanted |= set(node.reads)
    return live

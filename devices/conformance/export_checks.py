"""Checks of runtime models, profiles, export and import."""

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

_METADATA_KEYS = ("layerType", "execOrder", "implType", "originalLayersNames", "execTimeMcs")


def check_runtime_model_covers_the_model(subject: Subject) -> None:
    """Expect executed nodes with unique names and all metadata that cover every used node."""
    for sample, compiled in compiled_samples(subject):
        nodes = compiled.get_runtime_model().nodes
        names = [node.name for node in nodes]
        expect(
            len(set(names)) == len(names),
            f"{sample.name}: executed nodes have duplicate names: {names}",
        )
        covered_nodes: set[str] = set()
        for node in nodes:
            missing = [key for key in _METADATA_KEYS if key not in node.metadata]
            expect(not missing, f"{sample.name}: {node.name} has no metadata {missing}")
            expect(
                node.metadata["execTimeMcs"] == "not_executed", "execTimeMcs before the first run"
            )
            covered_nodes |= set(node.metadata["originalLayersNames"].split(","))
        used_nodes = _used_nodes(sample.model.nodes, {port.name for port in sample.model.outputs})
        uncovered = used_nodes - covered_nodes
        expect(not uncovered, f"{sample.name}: no executed node covers {uncovered}")


def check_profile_has_stages_and_times(subject: Subject) -> None:
    """Expect times of stages and nodes after a run with PERF_COUNT, and none before."""
    sample = next((s for s in supported_samples(subject) if s.model.nodes), None)
    if sample is None:  # a device may support no operator of the samples
        return
    compiled = subject.compile_model(sample.model, {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    rows = request.profiling_info
    expect(len(rows) >= 5, f"before a run: expected at least five stages, got {len(rows)} rows")
    expect(
        {row.status for row in rows} == {"NOT_RUN"},
        "before a run: rows have a status other than NOT_RUN",
    )
    request.infer(dict(sample.inputs))
    executed_rows = [row for row in request.profiling_info if row.status == "EXECUTED"]
    expect(
        len(executed_rows) >= 6,
        f"after a run: expected five stages and a node, got {len(executed_rows)} executed rows",
    )
    times = [n.metadata["execTimeMcs"] for n in compiled.get_runtime_model().nodes]
    measured_times = [time for time in times if time != "not_executed"]
    expect(
        measured_times and all(float(time) >= 0 for time in measured_times),
        f"the runtime model has times {times}",
    )
    compiled.close()


def check_imported_model_equals_exported(subject: Subject) -> None:
    """Expect equal ports and results of an exported and imported model, or a refusal to export."""
    for sample, compiled in compiled_samples(subject):
        try:
            payload = compiled.export_model()
        except UnsupportedOperationError:
            expect(
                "EXPORT_IMPORT" not in subject.get_property("OPTIMIZATION_CAPABILITIES"),
                "OPTIMIZATION_CAPABILITIES has EXPORT_IMPORT, but export_model is unsupported",
            )
            continue
        imported_model = subject.import_model(payload, sample.model)
        expect(
            imported_model.inputs == compiled.inputs,
            f"{sample.name}: the imported model has other inputs",
        )
        expect(
            imported_model.outputs == compiled.outputs,
            f"{sample.name}: the imported model has other outputs",
        )
        result = imported_model(dict(sample.inputs))
        expect_outputs(subject, sample, result, ", imported")
        imported_model.close()


def _used_nodes(nodes: Sequence[Node], values: set[str]) -> set[str]:
    """Return the names of the nodes that `values` depend on."""
    names: set[str] = set()
    for node in reversed(nodes):
        if values & set(node.writes):
            names.add(node.name)
            values |= set(node.reads)
    return names

"""What is in a blob, as plain values, from its header alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero.devices.errors import BlobError
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.blob_format import FORMAT_VERSION
from hetero.scheduler.formats.stored_payload import PAYLOADS
from hetero.scheduler.vocabulary.plan import Plan


def describe(blob: BlobFile) -> dict[str, Any]:
    """Return what is in a blob of any kind as plain values, read from its header alone."""
    head = blob.outline()
    if not isinstance(head, dict):
        raise BlobError(f"blob {blob.path or ''}: its header is not a hetero header.")
    try:
        rows = head.get("variants", [head] if "plan" in head else [])
        plans = [Plan.from_bytes(row["plan"]) for row in rows]
        plan = plans[0] if plans else None
        exports = head.get(PAYLOADS) or []
        return {
            "kind": str(head["kind"]),
            "name": str(head["name"]),
            "format_version": FORMAT_VERSION,
            "hetero": str(head["hetero"]),
            "digest": blob.digest,
            "nbytes": blob.nbytes,
            "segments": len(blob.segments),
            "content_hash": head.get("content_hash"),
            "devices": {
                name: {"plugin": r[0], "version": r[1], "fingerprint": r[2]}
                for name, r in head["devices"].items()
            },
            "options": head.get("options", {}),
            "device_options": head.get("device_options", {}),
            "inputs": [] if plan is None else [_port(spec) for spec in plan.inputs],
            "outputs": [] if plan is None else [_port(spec) for spec in plan.outputs],
            "shares": [row.get("share", 1.0) for row in rows],
            "stages": [
                {
                    "index": index,
                    "device": s.device,
                    "nodes": len(s.node_names),
                    "inputs": s.inputs,
                    "outputs": s.outputs,
                    "export_nbytes": _export_nbytes(blob, exports, index),
                }
                for index, s in enumerate(s for plan in plans for s in plan.stages)
            ],
        }
    except (TypeError, LookupError, AttributeError) as error:
        raise BlobError(f"blob {blob.path or ''}: header: damaged: {error}.") from error


def _export_nbytes(blob: BlobFile, exports: Sequence[Any], index: int) -> int | None:
    """Return how many bytes a stage's export takes; None for a stage that has none here."""
    if index >= len(exports) or exports[index] is None:
        return None
    return sum(part.nbytes for part in blob.references(exports[index]))


def _port(spec: TensorSpec) -> dict[str, Any]:
    shape = None if spec.shape is None else list(spec.shape)
    return {"name": spec.name, "type": spec.type, "shape": shape}

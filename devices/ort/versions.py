"""ONNX versions that the installed ONNX Runtime reads, and the conversion of newer models to them.

An operator's definition changes rarely: a model of a newer operator set means the same under an
older one if none of its operators changed in between.
"""

from __future__ import annotations

from functools import cache

import onnx

from hetero.devices.model.attributes import with_bodies
from hetero.devices.model.reader import SUPPORTED_OPSETS
from hetero.devices.ort.provider import Provider, quiet_options


@cache
def newest_ir_version() -> int:
    """Return the newest IR version that ONNX Runtime loads."""
    return next(v for v in range(onnx.IR_VERSION, 2, -1) if _can_load(v, {"": 7}))


@cache
def newest_opset(domain: str) -> int | None:
    """Return the newest operator set of a domain that ONNX Runtime loads; None if it loads any."""
    candidates = range(SUPPORTED_OPSETS.get(domain, 0), 0, -1)
    return next((v for v in candidates if _can_load(7, {"": 7, domain: v})), None)


def lower_versions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Lower a model's IR version and operator sets to the newest ones of ONNX Runtime, in place.

    Returns the model.
    """
    proto.ir_version = min(proto.ir_version, newest_ir_version())
    for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
        for entry in imports:
            limit = newest_opset("" if entry.domain == "ai.onnx" else entry.domain)
            entry.version = entry.version if limit is None else min(entry.version, limit)
    return proto


def newer_operator(node: onnx.NodeProto, opsets: dict[str, int]) -> str | None:
    """Describe the first operator in `node` or its bodies that changed after ONNX Runtime's newest.

    None if there is no such operator.
    """
    for inner in with_bodies(node):
        domain = "" if inner.domain == "ai.onnx" else inner.domain
        limit, imported = newest_opset(domain), opsets.get(domain)
        if limit is None or imported is None or imported <= limit:
            continue
        if not onnx.defs.has(inner.op_type, imported, domain):
            continue  # a function of the model
        since = onnx.defs.get_schema(inner.op_type, imported, domain).since_version
        if since > limit:
            return f"{inner.op_type} of operator set {since} is newer than {limit}, its newest"
    return None


def _can_load(ir_version: int, opsets: dict[str, int]) -> bool:
    """Return whether ONNX Runtime loads an empty model of these versions."""
    graph = onnx.parser.parse_graph("probe (float[1] x) => (float[1] x) {}")
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    try:
        Provider().open_session(proto.SerializeToString(), quiet_options())
    except Exception:  # the type differs between versions of ONNX Runtime
        return False
    return True

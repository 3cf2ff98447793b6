"""A case of ONNX's backend suite on one plugin, without a Core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devices import Plugin, read_model
from tests.backend_suite.cases import Case


def outcome(plugin: Plugin, case: Case, config: Mapping[str, Any]) -> str:
    """Return ``refused``, ``passed`` or what went wrong, whatever it was."""
    try:
        proto = case.model()
        model = read_model(proto)
        support = plugin.query_model(model)
        if support.unsupported:
            said = [r.message for by in support.unsupported.values() for r in by.values()]
            return "refused" if min(map(len, said)) > 12 else f"refused without a reason: {said}"
        compiled = plugin.compile_model(model, config)
        try:
            for inputs, wanted in case.data_sets(proto):
                # Some cases give data for the initializers too.
                own = len(inputs) == len(model.inputs)
                names = [port.name for port in (model.inputs if own else proto.graph.input)]
                given = dict(zip(names, inputs, strict=False))
                result = compiled({port.name: given[port.name] for port in compiled.inputs})
                case.compare(list(result.to_tuple()), wanted)
        finally:
            compiled.close()
    except Exception as error:  # a miss is any way not to pass
        return f"{type(error).__name__}: {error}"
    return "passed"

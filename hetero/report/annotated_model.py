"""Annotated model: the report as ONNX metadata, which Netron displays and ONNX Runtime reads."""

from __future__ import annotations

from typing import Any, Final

from hetero.affinity.affinity import Affinity
from hetero.affinity.metadata import annotate
from hetero.devices.model.model import Model, header_with

#: Keys of the model's metadata: the verdict's sentence, and the placement's digest.
VERDICT_KEY: Final = "hetero.verdict"
PLACEMENT_KEY: Final = "hetero.placement"


def annotated_model(model: Model, document: dict[str, Any]) -> Model:
    """Return the model with the device, subgraph and reason of each node in its metadata.

    Nodes get ``hetero.device``, ``hetero.subgraph``, ``hetero.reason``, ``layer_ann``, ONNX's own
    device records, and ``hetero.affinity``, so that the annotated model compiles to the same
    placement again. The model gets ``hetero.verdict`` and ``hetero.placement``, and an IR version
    that supports all of them.
    """
    rows = [row for row in document["nodes"] if row["device"] is not None]
    stages = {row["name"]: row["subgraph"] for row in rows if row["subgraph"] is not None}
    affinity = Affinity(
        {row["name"]: row["device"] for row in rows}, {row["name"]: row["why"] for row in rows}
    )
    annotated = annotate(model, affinity, stages=stages)
    metadata = {VERDICT_KEY: document["verdict"]["sentence"], PLACEMENT_KEY: document["placement"]}
    return annotated.replace(header=header_with(annotated, metadata))

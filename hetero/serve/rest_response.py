"""An inference's answer as a response's body: JSON, and behind it the raw bytes of tensors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from hetero.serve.call import InferCall, WantedOutput
from hetero.serve.datatypes import NAMES
from hetero.serve.regions import Place, Regions
from hetero.serve.tensors import to_binary, to_json

#: zlib's window of each encoding that a response may have.
_WINDOWS: Final = {"gzip": 31, "deflate": 15}
#: Quick rather than small: tensors hardly shrink.
_EFFORT: Final = 1
Part = bytes | memoryview


def dump_json(document: Any) -> bytes:
    """Return a document as JSON; arrays are lists."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def write_infer(
    model: str,
    version: str,
    call: InferCall,
    outputs: Sequence[tuple[str, np.ndarray]],
    regions: Regions,
) -> tuple[int | None, list[Part]]:
    """Return the JSON's length where raw bytes follow it, else None; and the body, in parts.

    Raises
    ------
    ProtocolError
        JSON has no form for an output that was not asked for as raw bytes.
    """
    asked = {wanted.name: wanted for wanted in call.outputs}
    entries, raw = [], []
    for name, array in outputs:
        entry: dict[str, Any] = {
            "name": name, "datatype": NAMES[array.dtype], "shape": array.shape,
        }  # fmt: skip
        wanted = asked.get(name, WantedOutput(name))
        if wanted.place is not None:
            entry["parameters"] = write_place(wanted.place, array, regions)
        elif call.binary if wanted.binary is None else wanted.binary:
            data = to_binary(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            entry["data"] = to_json(name, array)
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if call.id:
        document["id"] = call.id
    head = dump_json({**document, "outputs": entries})
    return (len(head) if raw else None), [head, *raw]


def write_place(place: Place, array: np.ndarray, regions: Regions) -> dict[str, Any]:
    """Write an output to its place in a client's memory; return the parameters that say so."""
    data = to_binary(array)
    regions.write(place, data)
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": len(data),
    }


def packed(parts: Sequence[Part], accepted: str) -> tuple[str, Sequence[Part]]:
    """Return the encoding that a client prefers of those it accepts, and the body in it."""
    encoding = _preferred(accepted)
    if not encoding:
        return "", parts
    writer = zlib.compressobj(_EFFORT, zlib.DEFLATED, _WINDOWS[encoding])
    return encoding, [b"".join([*map(writer.compress, parts), writer.flush()])]


def _preferred(accepted: str) -> str:
    """Return the encoding of an Accept-Encoding header that it weighs most; empty for none."""
    best, chosen = 0.0, ""
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        try:
            weighs = float(weight.replace(" ", "").removeprefix("q=") or 1)
        except ValueError:
            continue
        if name.strip().lower() in _WINDOWS and weighs > best:
            best, chosen = weighs, name.strip().lower()
    return chosen

"""Runs exported decoders with states, a prompt and then a token, against their logits.

``python -m tests.wild.decoders FOLDER [--json]``: the folder, which ``export_decoders.py`` makes,
holds for each architecture ``expected.npz`` (``ids``, ``next``, and transformers' logits ``prompt``
and ``token``) and a folder for each exporter with ``model.onnx``. The model builder's exports are
held to ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

import hetero
from hetero.errors import HeteroError
from tests.support.random_affinity import random_affinity
from tests.wild.outcomes import closing, outcome

WAYS: Final = {
    "ORT": ("ORT", False),
    "CPU": ("CPU", False),
    "OV": ("OV", False),
    "ORT,CPU": ("HETERO:ORT,CPU", False),
    "OV,ORT,CPU": ("HETERO:OV,ORT,CPU", False),
    "random": ("HETERO:ORT,CPU", True),
}
_TOLERANCE: Final = 2e-3
#: Integers that the weights of 4 bits meet are rounded otherwise by ONNX Runtime.
_COARSE: Final = 5e-2


def _plain(name: str, ids: np.ndarray, past: int) -> np.ndarray:
    """Return an input beside the states."""
    length = ids.shape[1]
    if name == "input_ids":
        return ids
    if name == "position_ids":
        return np.arange(past, past + length)[None]
    if name == "attention_mask":
        return np.ones((1, past + length), np.int64)
    raise ValueError(f"input {name!r} is not known")


def _empty(port: Any, dtype: Any) -> np.ndarray:
    """Return what a state is before the prompt."""
    shape = [d if isinstance(d, int) else 0 for d in port.shape]
    return np.zeros((1, *shape[1:]), dtype)


def _target(name: str) -> str:
    return name.replace("past_key_values", "present").replace("past_conv", "present_conv")


def reference(path: str, steps: list[np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's logits of each step, the states fed by hand."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    states = {
        port.name: _empty(port, np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past")
    }
    logits, past = [], 0
    for ids in steps:
        given = [p.name for p in session.get_inputs() if p.name not in states]
        feeds = {name: _plain(name, ids, past) for name in given}
        made = dict(zip(names, session.run(None, feeds | states), strict=True))
        states = {name: made[_target(name)] for name in states}
        logits.append(made["logits"])
        past += ids.shape[1]
    return logits


def attempt(path: str, way: str) -> dict[str, str]:
    """Return the outcome of a decoder on a list of devices, and why."""
    expected = np.load(Path(path).parents[1] / "expected.npz")
    steps = [expected["ids"], expected["next"]]
    wanted, tolerance = [expected["prompt"], expected["token"]], _TOLERANCE
    if "builder" in path:
        wanted = reference(path, steps)
        tolerance = _COARSE if "int4" in path else _TOLERANCE
    devices, pinned = WAYS[way]
    with hetero.Core(executor="inprocess") as core:
        model = core.read_model(path)
        states = {p.name: _target(p.name) for p in model.inputs if p.name.startswith("past")}
        try:
            pins = random_affinity(core, model, ["ORT", "CPU"], 0) if pinned else None
            compiled = core.compile_model(model, devices, affinity=pins, states=states)
            ports = {port.name: port for port in model.inputs}
            request = compiled.create_infer_request()
            for state in request.query_state():
                state.state = _empty(ports[state.name], ports[state.name].dtype)
            past = 0
            for ids, want in zip(steps, wanted, strict=True):
                given = [port.name for port in compiled.inputs]
                got = request.infer({n: _plain(n, ids, past) for n in given})["logits"]
                past += ids.shape[1]
                off = float(np.abs(got - want).max() / np.abs(want).max())
                if got.shape != want.shape or not off < tolerance:
                    return {"outcome": "wrong", "why": f"{off:.1e} off after {past} tokens"}
        except HeteroError as error:
            return {"outcome": "refused", "why": str(error)}
        return {"outcome": "right", "why": f"{len(compiled.subgraphs)} subgraphs"}


def main() -> int:
    """Return 1 where an answer was wrong or a process crashed."""
    parser = argparse.ArgumentParser(prog="python -m tests.wild.decoders", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each trial")
    parser.add_argument("--way", choices=tuple(WAYS), help="one model, in this process")
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(attempt(str(asked.folder), asked.way)))
        return 0
    rows = []
    for path in sorted(asked.folder.glob("*/*/model.onnx")):
        name, exporter, _ = path.parts[-3:]
        for way in WAYS:
            found = outcome("tests.wild.decoders", str(path), "--way", way)
            rows.append({"model": name, "exporter": exporter, "way": way, **found})
            said = json.dumps(rows[-1]) if asked.json else " | ".join(rows[-1].values())
            print(said, flush=True)
    print(f"{len(rows) // len(WAYS)} exports\n" + closing(rows, WAYS))
    return int(any(row["outcome"] in ("wrong", "crashed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())

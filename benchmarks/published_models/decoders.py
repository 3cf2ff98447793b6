"""Run exported decoders with states for a prompt and one token, against reference logits.

``python -m benchmarks.published_models.decoders FOLDER [--json]``. ``export_decoders.py`` makes the
folder. For each architecture it holds ``expected.npz`` (``ids``, ``next``, the logits ``prompt``
and ``token`` of transformers, and the inputs of an encoder) and a folder for each exporter with
``model.onnx``, or with an encoder and three forms of the decoder. Exports with 4-bit weights are
compared with ONNX Runtime instead. Every tenth export also runs cut on Ray.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

import hetero
from benchmarks.published_models.outcomes import closing, outcome
from hetero.apps.generate.read_decoder import with_head_sizes
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.reader import read_model
from hetero.errors import HeteroError
from tests.support.random_affinity import random_affinity

#: Name -> the devices, and whether nodes are pinned to them at random.
WAYS: Final = {
    "ORT": ("ORT", False),
    "CPU": ("CPU", False),
    "OV": ("OV", False),
    "ORT,CPU": ("HETERO:ORT,CPU", False),
    "OV,ORT,CPU": ("HETERO:OV,ORT,CPU", False),
    "random": ("HETERO:ORT,CPU", True),
    "ray": ("HETERO:ORT,CPU", True),
}
_TOLERANCE: Final = 1e-3
#: Tolerance for 4-bit weights: ONNX Runtime rounds the activations differently.
_TOLERANCE_4_BITS: Final = 5e-2
_RAY_INTERVAL: Final = 10

Arrays = Mapping[str, Any]


def _input_value(name: str, ids: np.ndarray, past: int, source: Arrays) -> np.ndarray:
    """Return the value of an input that is not a state."""
    length = ids.shape[1]
    if name in source:
        return np.asarray(source[name])
    if name == "input_ids":
        return ids
    if name == "position_ids":
        return np.arange(past, past + length)[None]
    if name == "attention_mask":
        return np.ones((1, past + length), np.int64)
    if name == "use_cache_branch":
        return np.array([past > 0])
    raise ValueError(f"input {name!r} is not known")


def _empty(port: Any, dtype: Any) -> np.ndarray:
    """Return the value of a state before the prompt."""
    shape = [d if isinstance(d, int) else 0 for d in port.shape]
    return np.zeros((1, *shape[1:]), dtype)


def _target(name: str) -> str:
    return name.replace("past_key_values", "present").replace("past", "present")


def reference(path: str, steps: list[np.ndarray]) -> list[np.ndarray]:
    """Return ONNX Runtime's logits of each step; states are passed on by hand."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    ports = with_head_sizes(read_model(path)).inputs
    states = {p.name: _empty(p, np.float32) for p in ports if p.name.startswith("past")}
    logits, past = [], 0
    for ids in steps:
        inputs = [p.name for p in session.get_inputs() if p.name not in states]
        feeds = {name: _input_value(name, ids, past, {}) for name in inputs}
        outputs = dict(zip(names, session.run(None, feeds | states), strict=True))
        states = {name: outputs[_target(name)] for name in states}
        logits.append(outputs["logits"])
        past += ids.shape[1]
    return logits


class _Trial:
    """One export on one list of devices."""

    def __init__(self, core: hetero.Core, way: str) -> None:
        self._core = core
        self._devices, self._pinned = WAYS[way]
        self.subgraphs = 0

    def compile(self, path: Path) -> tuple[CompiledModel, Mapping[str, Any]]:
        """Return the compiled model, with its caches as states, and its inputs."""
        model = with_head_sizes(self._core.read_model(path))
        output_names = {port.name for port in model.outputs}
        pairs = {p.name: _target(p.name) for p in model.inputs if p.name.startswith("past")}
        pins = random_affinity(self._core, model, ["ORT", "CPU"], 0) if self._pinned else None
        compiled = self._core.compile_model(
            model,
            self._devices,
            affinity=pins,
            states=pairs if output_names.issuperset(pairs.values()) else None,
        )
        self.subgraphs += len(compiled.subgraphs)
        return compiled, {port.name: port for port in model.inputs}

    def logits(self, path: Path, steps: list[np.ndarray], source: Arrays) -> list[np.ndarray]:
        """Return a decoder's logits of each step; the request keeps the states."""
        compiled, ports = self.compile(path)
        request = compiled.create_infer_request()
        for state in request.query_state():
            state.state = _empty(ports[state.name], ports[state.name].dtype)
        logits, past = [], 0
        for ids in steps:
            names = [port.name for port in compiled.inputs]
            feeds = {name: _input_value(name, ids, past, source) for name in names}
            logits.append(np.array(request.infer(feeds)["logits"]))
            past += ids.shape[1]
        return logits

    def source(self, folder: Path, expected: Arrays) -> Arrays:
        """Run the folder's encoder and return its outputs for the decoder."""
        read = {n.removeprefix("source."): expected[n] for n in expected if n.startswith("source.")}
        compiled, _ = self.compile(folder / "encoder_model.onnx")
        feeds = {p.name: read.get(p.name) for p in compiled.inputs}
        if "attention_mask" in feeds:
            feeds["attention_mask"] = np.ones_like(read["input_ids"])
        hidden = compiled(feeds)["last_hidden_state"]
        mask = np.ones(hidden.shape[:2], np.int64)
        return {"encoder_hidden_states": hidden, "encoder_attention_mask": mask}

    def two_models(self, folder: Path, steps: list[np.ndarray], source: Arrays) -> list[np.ndarray]:
        """Return the logits of a pair of models: one for the prompt, one for later tokens."""
        first, _ = self.compile(folder / "decoder_model.onnx")
        outputs = first(
            {p.name: _input_value(p.name, steps[0], 0, source) for p in first.inputs}
        ).by_name()
        second, _ = self.compile(folder / "decoder_with_past_model.onnx")
        values = {
            **source,
            **{n.replace("present", "past_key_values"): outputs[n] for n in outputs},
        }
        feeds = {
            p.name: _input_value(p.name, steps[1], steps[0].shape[1], values) for p in second.inputs
        }
        return [np.asarray(outputs["logits"]), np.asarray(second(feeds)["logits"])]


def attempt(path: str, way: str) -> dict[str, str]:
    """Return the outcome of a decoder on a list of devices, and its reason."""
    file = Path(path)
    expected = dict(np.load(file.parents[1] / "expected.npz"))
    steps = [expected["ids"], expected["next"]]
    expected_logits, tolerance = [expected["prompt"], expected["token"]], _TOLERANCE
    if "int4" in path:
        expected_logits, tolerance = reference(path, steps), _TOLERANCE_4_BITS
    with hetero.Core(executor="ray" if way == "ray" else "inprocess") as core:
        trial = _Trial(core, way)
        try:
            source: Arrays = {}
            if file.name != "model.onnx":
                source = trial.source(file.parent, expected)
            if file.name == "decoder_model.onnx":
                logits = trial.two_models(file.parent, steps, source)
            else:
                logits = trial.logits(file, steps, source)
        except HeteroError as error:
            return {"outcome": "refused", "why": str(error)}
    for step, (result, reference_logits) in enumerate(zip(logits, expected_logits, strict=True)):
        off = float(np.abs(result - reference_logits).max() / np.abs(reference_logits).max())
        if result.shape != reference_logits.shape or not off < tolerance:
            return {"outcome": "wrong", "why": f"{off:.1e} off in step {step}"}
    return {"outcome": "right", "why": f"{trial.subgraphs} subgraphs"}


def main() -> int:
    """Return 1 if a result was wrong or a process crashed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_models.decoders", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each trial")
    parser.add_argument("--way", choices=tuple(WAYS), help="one model, in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(attempt(str(options.folder), options.way)))
        return 0
    rows = []
    names = ("model", "decoder_model", "decoder_model_merged")
    paths = sorted(path for n in names for path in options.folder.glob(f"*/*/{n}.onnx"))
    for number, path in enumerate(paths):
        name, exporter, file = path.parts[-3:]
        if file != "model.onnx":
            exporter = f"{exporter} {file.removesuffix('.onnx')}"
        for way in WAYS:
            if way == "ray" and number % _RAY_INTERVAL:
                continue
            result = outcome("benchmarks.published_models.decoders", str(path), "--way", way)
            rows.append({"model": name, "exporter": exporter, "way": way, **result})
            line = json.dumps(rows[-1]) if options.json else " | ".join(rows[-1].values())
            print(line, flush=True)
    print(f"{len(paths)} exports\n" + closing(rows, WAYS))
    return int(any(row["outcome"] in ("wrong", "crashed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Compare generated text of exported decoders with transformers, cut by layers over devices.

``python -m benchmarks.published_models.generate FOLDER [--json]``; `export_decoders.py` makes the
folder. ``python benchmarks/published_models/generate.py FOLDER --expect``, in the environment of
that script, first writes ``greedy.npz`` next to each ``expected.npz``: 100 prompts and the most
likely tokens that follow.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

#: Name -> executor, devices, and whether layers alternate between the devices.
WAYS: Final = {
    "ORT": ("inprocess", "ORT", False),
    "ORT,CPU by layers": ("inprocess", "HETERO:ORT,CPU", True),
    "OV,ORT,CPU": ("inprocess", "HETERO:OV,ORT,CPU", False),
    "OV,ORT,CPU on Ray": ("ray", "HETERO:OV,ORT,CPU", False),
}
_PROMPTS, _TOKENS, _LONGEST = 100, 6, 12
#: Tolerance of logits, relative to the largest.
_TOLERANCE: Final = 1e-3
#: Fewer prompts on Ray, which takes long to start.
_PROMPTS_ON_RAY: Final = 10


def expect(folder: Path) -> None:
    """Write transformers' tokens for one model; each token is computed from the whole text."""
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "source").eval()
    rng = np.random.default_rng(7)
    size = model.config.vocab_size
    lengths = rng.integers(1, _LONGEST + 1, _PROMPTS)
    ids = rng.integers(3, size, (_PROMPTS, _LONGEST + _TOKENS))
    logits = np.zeros((_PROMPTS, _TOKENS, size), np.float32)
    for length in range(1, _LONGEST + 1):
        rows = np.flatnonzero(lengths == length)
        for step in range(_TOKENS if len(rows) else 0):
            with torch.no_grad():
                scores = model(torch.tensor(ids[rows, : length + step])).logits[:, -1].numpy()
            logits[rows, step] = scores
            ids[rows, length + step] = scores.argmax(-1)
    np.savez(folder / "greedy.npz", ids=ids, lengths=lengths, logits=logits)


def attempt(path: Path, way: str) -> dict[str, Any]:
    """Compare an export with transformers: equal texts, and the error of the logits."""
    import hetero
    from hetero.affinity.layers import find_layers

    expected = np.load(path.parents[1] / "greedy.npz")
    kind, devices, by_turns = WAYS[way]
    model = hetero.read_decoder(path, logits=True)
    layers = find_layers(model)
    turns = [n for i, names in enumerate(layers) if i % 2 for n in names]
    pins = dict.fromkeys(turns, "CPU") if by_turns else None
    with (
        hetero.Core(kind) as core,  # type: ignore[arg-type]
        core.compile_model(model, devices, affinity=pins) as compiled,
    ):
        most = _PROMPTS_ON_RAY if kind == "ray" else _PROMPTS
        same, off = 0, 0.0
        for ids, length, scores in list(
            zip(expected["ids"], expected["lengths"], expected["logits"], strict=True)
        )[:most]:
            text = compiled.generate(ids[:length], _TOKENS, eos=())
            want = ids[length : length + _TOKENS].tolist()
            for _, score in zip(text, scores, strict=True):
                if text.tokens[:-1] == want[: len(text.tokens) - 1]:
                    off = max(off, float(np.abs(text.logits - score).max() / np.abs(score).max()))
            same += text.tokens == want
        right = same == most and off < _TOLERANCE
        return {
            "outcome": "right" if right else "wrong",
            "why": f"{same} of {most} texts, {off:.1e} off, {len(compiled.subgraphs)} subgraphs",
        }


def main() -> int:
    """Return 1 if a text differed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_models.generate", description=__doc__
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--expect", action="store_true", help="write the expected tokens")
    parser.add_argument("--exporters", default="optimum,builder-fp32", help="folders of exports")
    parser.add_argument("--way", choices=tuple(WAYS), action="append", help="default: all")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each trial")
    options = parser.parse_args()
    if options.expect:
        for file in sorted(options.folder.glob("*/optimum/model.onnx")):
            expect(file.parents[1])
        return 0
    wrong = 0
    for path in sorted(options.folder.glob("*/*/model.onnx")):
        name, exporter, _ = path.parts[-3:]
        if (
            exporter not in options.exporters.split(",")
            or not (path.parents[1] / "greedy.npz").is_file()
        ):
            continue
        for way in options.way or WAYS:
            try:
                result = attempt(path, way)
            except Exception as error:
                result = {"outcome": type(error).__name__, "why": str(error)[:200]}
            wrong += result["outcome"] != "right"
            row = {"model": name, "exporter": exporter, "way": way, **result}
            print(json.dumps(row) if options.json else " | ".join(row.values()), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

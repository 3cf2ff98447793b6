"""Text generation: decoders against a decode loop by hand, continuous batching, and recovery.

``python -m benchmarks.generate [FOLDER ...] [--genai PYTHON] [--executors ...] [--faults N]
[--json]``. A folder contains an export with ``model.onnx``. Each device has one thread. The
variants take turns: onnxruntime with the decode loop and the KV cache by hand; onnxruntime-genai in
another process, if PYTHON is an interpreter that has it and the folder its configuration; and
hetero on one ORT device and split over three by layer. `ratio` is the rate relative to the loop by
hand, `genai_ratio` relative to onnxruntime-genai in the same turn. Rows are prompts in one call;
sequences in threads have one reader each, and their time includes the prefill. Without a folder
only stages of 10 ms are measured.

For gaps between tokens, `ms_per_step` is the 95th percentile while prompts of ``--beside`` tokens
are processed, and `ratio` compares it with the one without prompts. With faults, one of three
devices on Ray is killed and stopped N times each while four sequences are generated: the rows have
the longest gap, the numbers of lost, additional and changed tokens, the replayed stage runs, the
recovered KV caches, and the sequences that were recomputed from their tokens.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

import hetero
from benchmarks.processes import Child
from benchmarks.sessions import bare_session
from benchmarks.tables import names, print_rows
from hetero.affinity.layers import find_layers
from hetero.apps.generate.decoder_ports import Decoder
from hetero.examples.small_decoder import small_decoder

_PROMPT: Final = list(range(5, 37))
_STAGE_US: Final = 10_000
_STAGES: Final = 4
_TEXTS: Final = 4
_DEVICES: Final = ("ORT.0", "ORT.1", "ORT.2")
_ENDS: Final = [signal.SIGKILL, signal.SIGSTOP]
#: Time limit until sequences reach a quarter of their length.
_QUARTER_TIMEOUT_S: Final = 120.0
#: Seconds between two faults, for the restart of the device.
_PAUSE_S: Final = 8.0
#: Function that generates a number of tokens and returns the seconds without the prefill.
Way = Callable[[int], float]

#: Program of the peer's process: reads a number of tokens, prints seconds.
_PEER: Final = """
import sys, time
import onnxruntime_genai as og
config = og.Config(sys.argv[1])
config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}')
model = og.Model(config)
for line in sys.stdin:
    count = int(line)
    params = og.GeneratorParams(model)
    params.set_search_options(do_sample=False, max_length=PROMPT + count + 1, min_length=PROMPT + count + 1)
    generator = og.Generator(model, params)
    generator.append_tokens(list(range(5, 5 + PROMPT)))
    generator.generate_next_token()
    begin_s = time.perf_counter()
    for _ in range(count):
        generator.generate_next_token()
    print(time.perf_counter() - begin_s, flush=True)
""".replace("PROMPT", str(len(_PROMPT)))  # noqa: E501 - a line of a program


def bare(path: Path, model: hetero.Model) -> Way:
    """Return a session whose KV cache is passed by hand, with the sizes from `model`."""
    session = bare_session(path, 1)
    output_names = [port.name for port in session.get_outputs()]
    ports = session.get_inputs()
    shapes = {port.name: port.shape or () for port in model.inputs}

    def run(count: int) -> float:
        caches = {
            name: np.zeros([1, *(d if isinstance(d, int) else 0 for d in shape[1:])], "f")
            for name, shape in shapes.items()
            if name.startswith("past")
        }
        new, past, begin_s = np.int64([_PROMPT]), 0, 0.0
        for step in range(count + 1):
            begin_s = time.perf_counter() if step == 1 else begin_s
            total = past + new.shape[1]
            feeds = {
                "input_ids": new,
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(past, total)[None],
            }
            inputs = {p.name: feeds[p.name] for p in ports if p.name in feeds}
            outputs = dict(
                zip(output_names, session.run(output_names, inputs | caches), strict=True)
            )
            caches = {n: outputs[n.replace("past_key_values", "present")] for n in caches}
            new, past = np.int64([[np.argmax(outputs["logits"][0, -1])]]), total
        return time.perf_counter() - begin_s

    return run


def ours(compiled: hetero.CompiledModel, rows: int = 1) -> Way:
    """Return a function that calls a compiled model's `generate`."""

    def run(count: int) -> float:
        prompts: Any = [_PROMPT] * rows if rows > 1 else _PROMPT
        generation = compiled.generate(prompts, count + 1, eos=())
        next(generation)
        begin_s = time.perf_counter()
        for _ in generation:
            pass
        return time.perf_counter() - begin_s

    return run


def concurrent_sequences(compiled: hetero.CompiledModel, count: int) -> Way:
    """Return as many texts, each read by a thread, their prompts' runs included."""

    def run(tokens: int) -> float:
        texts = [compiled.generate(_PROMPT, tokens + 1, eos=()) for _ in range(count)]
        begin_s = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(list, texts))
        return time.perf_counter() - begin_s

    return run


def measure(
    folder: Path, kinds: Sequence[str], python: str | None, tokens: int, turns: int, rows: int
) -> list[dict[str, Any]]:
    """Return a row for each way of an export."""
    model = hetero.read_decoder(folder / "model.onnx")
    pins = _by_thirds(model)
    options = {"INFERENCE_NUM_THREADS": 1}
    times_s: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ways: dict[str, tuple[Way, int]] = {"bare": (bare(folder / "model.onnx", model), 1)}
        if python and (folder / "genai_config.json").is_file():
            peer = stack.enter_context(Child("-c", _PEER, str(folder), python=python, env={}))
            ways["genai"] = (lambda count: float(peer.ask(count)), 1)
        for kind in kinds:
            core = stack.enter_context(hetero.Core(kind, devices={"ORT": 3}))  # type: ignore[arg-type]
            one = core.compile_model(model, "ORT.0", options)
            three = core.compile_model(model, "HETERO:ORT.0,ORT.1,ORT.2", options, affinity=pins)
            ways[f"{kind} 1 device"] = (ours(one), 1)
            ways[f"{kind} 3 devices"] = (ours(three), 1)
            ways[f"{kind} 1 device, {rows} rows"] = (ours(one, rows), rows)
            ways[f"{kind} 1 device, {rows} texts in threads"] = (
                concurrent_sequences(one, rows),
                rows,
            )
        for turn in range(turns + 1):
            for name, (way, _) in ways.items():
                seconds = way(tokens)
                if turn:
                    times_s.setdefault(name, []).append(seconds)
    return [
        {
            "export": f"{folder.parent.name}/{folder.name}",
            "way": name,
            "tokens_per_s": tokens * num / statistics.median(times_s[name]),
            "ratio": num * _ratio(times_s["bare"], times_s[name]),
            "genai_ratio": num * _ratio(times_s["genai"], times_s[name])
            if "genai" in times_s
            else None,
            "ms_per_step": statistics.median(times_s[name]) / tokens * 1e3,
        }
        for name, (_, num) in ways.items()
    ]


def timed_tokens(
    compiled: hetero.CompiledModel,
    prompt: list[int],
    tokens: int,
    quarter_reached: Callable[[], object],
) -> tuple[list[int], list[float]]:
    """Return tokens and the seconds between them; call `quarter_reached` after a quarter."""
    generation, spans = compiled.generate(prompt, tokens + 1, eos=()), []
    next(generation)
    begin_s = time.perf_counter()
    for position, _ in enumerate(generation):
        spans.append(time.perf_counter() - begin_s)
        if position == tokens // 4:
            quarter_reached()
        begin_s = time.perf_counter()
    return generation.tokens, spans


def gaps(folder: Path, kinds: Sequence[str], tokens: int, beside: int) -> list[dict[str, Any]]:
    """Return the 95th percentile of gaps between tokens while long prompts run."""
    rows = []
    model = hetero.read_decoder(folder / "model.onnx")
    size = Decoder.of(model).vocabulary
    long = [i % size for i in range(beside)]
    for kind, streams in product(kinds, (1, 2)):
        options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": streams}
        with (
            hetero.Core(kind, devices={"ORT": 1}) as core,  # type: ignore[arg-type]
            core.compile_model(model, "ORT", options) as compiled,
            ThreadPoolExecutor(1) as pool,
        ):
            _, alone = [timed_tokens(compiled, _PROMPT, tokens, int) for _ in range(2)][1]
            text = pool.submit(timed_tokens, compiled, _PROMPT, tokens, int)
            while not text.done():
                list(compiled.generate(long, 1, eos=()))
            p95_s, alone_s = (float(np.percentile(s, 95)) for s in (text.result()[1], alone))
        way = f"{kind} p95 gap with prompts, {streams} stream{'s' * (streams > 1)}"
        rows.append(_row(folder, way, p95_s, p95_s / alone_s))
    return rows


def faults(folder: Path, count: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of four sequences on three devices, of which one is killed or stopped."""
    model = hetero.read_decoder(folder / "model.onnx")
    prompts = [_PROMPT[i:] + _PROMPT[:i] for i in range(_TEXTS)]
    lost_caches = RecoveryLog()
    with hetero.Core("ray", devices={"ORT": 3}) as core, ThreadPoolExecutor(_TEXTS) as pool:
        options = {"INFERENCE_NUM_THREADS": 1}
        devices = "HETERO:ORT.0,ORT.1,ORT.2"
        compiled = core.compile_model(model, devices, options, affinity=_by_thirds(model))
        want = [timed_tokens(compiled, prompt, tokens, int)[0] for prompt in prompts]
        executor: Any = core.executor
        for how, (stage, device) in product(_ENDS * count, enumerate(_DEVICES)):
            pid = executor._ask(executor._devices.device(device), "ping")
            quarter_reached = threading.Barrier(_TEXTS + 1, timeout=_QUARTER_TIMEOUT_S)
            texts = [
                pool.submit(timed_tokens, compiled, p, tokens, quarter_reached.wait)
                for p in prompts
            ]
            quarter_reached.wait()
            lost_caches.clear()
            os.kill(pid, how)
            sequences = [text.result() for text in texts]
            row = _row(
                folder, f"ray {how.name} of stage {stage}", max(max(t[1]) for t in sequences)
            )
            yield row | differences([text for text, _ in sequences], want) | lost_caches.found()
            time.sleep(_PAUSE_S)


def differences(sequences: Sequence[list[int]], expected: Sequence[list[int]]) -> dict[str, int]:
    """Count the missing, additional and wrong tokens of sequences."""
    pairs = list(zip(sequences, expected, strict=True))
    return {
        "lost": sum(max(0, len(b) - len(a)) for a, b in pairs),
        "doubled": sum(max(0, len(a) - len(b)) for a, b in pairs),
        "changed": sum(x != y for a, b in pairs for x, y in zip(a, b, strict=False)),
    }


class RecoveryLog(logging.Handler):
    """Log handler that counts recoveries of lost KV caches.

    A KV cache is recomputed by the lost stage alone, or by all stages from the tokens so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[int] = []
        self._num_anew = 0
        for name in ("hetero.scheduler.client.recompute", "hetero.apps.generate.batcher"):
            logging.getLogger(name).setLevel(logging.INFO)
            logging.getLogger(name).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Count a log record."""
        if record.name.startswith("hetero"):
            self._num_anew += 1
        elif isinstance(record.args, tuple):
            self._runs.append(int(str(record.args[-1])))

    def clear(self) -> None:
        """Reset the counts."""
        self._runs, self._num_anew = [], 0

    def found(self) -> dict[str, int]:
        """Return the counts."""
        return {"restores": len(self._runs), "runs": sum(self._runs), "anew": self._num_anew}


def _row(folder: Path, way: str, gap_s: float, ratio: float | None = None) -> dict[str, Any]:
    return {
        "export": f"{folder.parent.name}/{folder.name}",
        "way": way,
        "ratio": ratio,
        "ms_per_step": gap_s * 1e3,
    }


def _by_thirds(model: hetero.Model) -> dict[str, str]:
    layers = find_layers(model)
    return {n: _DEVICES[i * 3 // len(layers)] for i, group in enumerate(layers) for n in group}


def stages(kinds: Sequence[str], tokens: int) -> list[dict[str, Any]]:
    """Return the rate of as many sequences as stages over that of one, with stages that sleep."""
    rows = []
    model = hetero.read_decoder(small_decoder(_STAGES))
    pins = {
        name: f"NULL.{min(i, _STAGES - 1)}"
        for i, layer in enumerate(find_layers(model))
        for name in layer
    }
    slow = {f"mixed_{i}": _STAGE_US for i in range(_STAGES)}
    devices = ",".join(f"NULL.{i}" for i in range(_STAGES))
    for kind in kinds:
        with (
            hetero.Core(kind, devices={"NULL": _STAGES}) as core,  # type: ignore[arg-type]
            core.compile_model(
                model, f"HETERO:{devices}", {"NULL_NODE_TIMES_US": slow}, affinity=pins
            ) as compiled,
        ):
            rates = {}
            for count in (1, _STAGES):
                begin_s = time.perf_counter()
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(ours(compiled), [tokens] * count))
                rates[count] = count * tokens / (time.perf_counter() - begin_s)
            rows.append(
                {
                    "export": "small decoder",
                    "way": f"{kind} {_STAGES} stages of 10 ms, {_STAGES} texts over one",
                    "tokens_per_s": rates[_STAGES],
                    "ratio": rates[_STAGES] / rates[1],
                    "ms_per_step": 1e3 * _STAGES / rates[_STAGES],
                }
            )
    return rows


def _ratio(theirs: Sequence[float], mine: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, mine, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--genai", help="Python interpreter with onnxruntime-genai")
    parser.add_argument("--executors", type=names, default=["inprocess", "ray"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--beside", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        row
        for folder in options.folders
        for row in measure(
            folder, options.executors, options.genai, options.tokens, options.turns, options.rows
        )
    ]
    for folder in options.folders:
        rows += gaps(folder, options.executors, options.tokens, options.beside)
        rows += faults(folder, options.faults, options.tokens) if options.faults else []
    rows += stages(options.executors, options.tokens)
    print_rows(rows, options.json)


if __name__ == "__main__":
    main()

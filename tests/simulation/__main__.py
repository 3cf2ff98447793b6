"""Run seeds: `python -m tests.simulation --seeds 1000`, or one: `--seed 7 --trace trace.json`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.simulation.history import History


def main() -> int:
    """Run the seeds; return 1 if any violates an invariant."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--requests", type=int, help="requests of a history; random by default")
    parser.add_argument("--trace", type=Path, help="write the history as a trace for Perfetto")
    parser.add_argument(
        "--texts", action="store_true", help="generate with a decoder instead of plain requests"
    )
    parser.add_argument("--until-broken", action="store_true", help="stop at the first violation")
    options = parser.parse_args()
    is_single = options.seed is not None
    seeds = [options.seed] if is_single else range(options.first, options.first + options.seeds)
    history_class: type[History] = History
    if options.texts:
        from tests.simulation.generation_history import (
            GenerationHistory,
        )  # imports all of hetero, which is slow

        history_class = GenerationHistory
    start_s, num_requests, num_events, broken = time.perf_counter(), 0, 0, []
    for seed in seeds:
        history = history_class(seed, is_traced=is_single, num_requests=options.requests).run()
        num_requests += len(history.calls)
        num_events += history.simulator.num_events
        if is_single:
            _print_stories(history, options.trace)
        if history.violations:
            broken.append(seed)
            size = f" --requests {options.requests}" if options.requests else ""
            size += " --texts" * options.texts
            print(f"seed {seed}: {history.violations[0]}\n  faults: {history.faults.words()}")
            print(f"  replay: python -m tests.simulation --seed {seed}{size} --trace trace.json")
            if options.until_broken:
                break
    duration_s = time.perf_counter() - start_s
    print(
        f"{len(seeds)} seeds, {num_requests} requests, {num_events} events in {duration_s:.1f} s "
        f"({num_events / duration_s:,.0f} per s): {len(broken)} with violations {broken or ''}"
    )
    return 1 if broken else 0


def _print_stories(history: History, trace: Path | None) -> None:
    """Print the stories and the hash of a history; write its trace."""
    for call in history.calls:
        if call.story and (not call.results or history.violations):
            print(f"call {call.number}:")
            for line in call.story():
                print(f"  {line.time_s:.4f} attempt {line.attempt}: {line.event}")
    print(f"hash {history.simulator.hash}")
    if trace is not None:
        names: dict[str, int] = {}
        rows = [
            {
                "name": line,
                "ph": "i",
                "s": "t",
                "ts": time_s * 1e6,
                "pid": 0,
                "tid": names.setdefault(line.split(" ", 1)[0].rstrip(":"), len(names)),
            }
            for time_s, line in history.simulator.lines or ()
        ]
        thread_names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}
            for name, number in names.items()
        ]
        trace.write_text(json.dumps({"traceEvents": [*thread_names, *rows]}))
        print(f"{len(rows)} lines in {trace}")


if __name__ == "__main__":
    sys.exit(main())

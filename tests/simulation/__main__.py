"""Run seeds: `python -m tests.simulation --seeds 1000`, or one: `--seed 7 --trace trace.json`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.simulation.history import History


def main() -> int:
    """Run what is asked for; 1 where something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--requests", type=int, help="requests of a history; drawn by default")
    parser.add_argument("--trace", type=Path, help="write the history as a trace for Perfetto")
    parser.add_argument("--texts", action="store_true", help="texts of a decoder, not requests")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first that breaks")
    options = parser.parse_args()
    one = options.seed is not None
    seeds = [options.seed] if one else range(options.first, options.first + options.seeds)
    kind: type[History] = History
    if options.texts:
        from tests.simulation.texts import Texts  # with all of hetero, which takes a while

        kind = Texts
    begun_s, num_requests, num_events, broken = time.perf_counter(), 0, 0, []
    for seed in seeds:
        history = kind(seed, is_traced=one, num_requests=options.requests).run()
        num_requests += len(history.calls)
        num_events += history.world.num_events
        if one:
            _tell(history, options.trace)
        if history.broken:
            broken.append(seed)
            size = f" --requests {options.requests}" if options.requests else ""
            size += " --texts" * options.texts
            print(f"seed {seed}: {history.broken[0]}\n  faults: {history.faults.words()}")
            print(f"  replay: python -m tests.simulation --seed {seed}{size} --trace trace.json")
            if options.until_broken:
                break
    took_s = time.perf_counter() - begun_s
    print(
        f"{len(seeds)} seeds, {num_requests} requests, {num_events} events in {took_s:.1f} s "
        f"({num_events / took_s:,.0f} a second): {len(broken)} seeds broke something {broken or ''}"
    )
    return 1 if broken else 0


def _tell(history: History, trace: Path | None) -> None:
    """Print a history's stories and hash; write its trace."""
    for call in history.calls:
        if call.story and (not call.ends or history.broken):
            print(f"call {call.number}:")
            for line in call.story():
                print(f"  {line.time_s:.4f} attempt {line.attempt}: {line.event}")
    print(f"hash {history.world.hash}")
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
            for time_s, line in history.world.lines or ()
        ]
        named = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}
            for name, number in names.items()
        ]
        trace.write_text(json.dumps({"traceEvents": [*named, *rows]}))
        print(f"{len(rows)} lines in {trace}")


if __name__ == "__main__":
    sys.exit(main())

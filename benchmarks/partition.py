"""Planner on published device-placement instances: bottleneck, proven bound and ratio.

Usage::

    python -m benchmarks.partition FILE... --mode contiguous|free --seconds 30 [--json]
    python -m benchmarks.partition FILE... --mask 0.1 [--seed 0] [--seconds 30] [--json]
    python -m benchmarks.partition --scale 100000 [--json]
    python -m benchmarks.partition --nodes 20000 [--seconds 30] [--json]

The first form plans files of the device-placement data set (accelerators and CPUs, max-load
objective). The second form keeps one accelerator, which does not support the share `--mask` of the
nodes, and one CPU that is 3 times slower; it compares with the bound of the best routing of
requests and with the priority list. The third form is the clustering benchmark, the fourth plans a
generated graph. Bottlenecks are those of the best plan, even if a simpler plan is nearly as good.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.tables import print_rows
from hetero.planning.solver.candidates import Solution
from hetero.planning.solver.problem import Problem
from tests.support.evaluation import plan
from tests.support.planner_problems import load, residual_network


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the modes and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if any(a == "--scale" or a.startswith("--scale=") for a in arguments):
        from benchmarks import partition_scale  # imported here: this mode does not need the planner

        return int(partition_scale.main(arguments) or 0)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partition", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="instances to plan")
    parser.add_argument("--mode", choices=("contiguous", "free"), default="free")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, help="plan a generated graph with this many nodes")
    parser.add_argument("--mask", type=float, help="share of nodes unsupported; see above")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if not options.files and not options.nodes:
        parser.error("name at least one FILE, or --nodes or --scale")
    masked = options.mask is not None
    masking = {"mask": options.mask, "seed": options.seed, "slow": 3.0} if masked else {}
    problems: list[tuple[str, Problem]] = [(file, load(file, **masking)) for file in options.files]
    if options.nodes:
        problems = [(f"residual-{options.nodes}", residual_network(options.nodes, options.seed))]
    rows = []
    for file, problem in problems:
        begin = time.monotonic()
        solution = plan(
            problem,
            seconds=options.seconds,
            seed=options.seed,
            contiguous=options.mode == "contiguous",
            replicates=masked,
        )
        rows.append(_row(file, options.mode, solution, time.monotonic() - begin, masked=masked))
        best = solution.choice
        sys.stderr.write(
            f"{file}: chosen {best.name}, {best.subgraphs} subgraphs on {best.levels} levels"
            f"{', cut short by the clock' if solution.cut_short else ''}\n"
        )
    print_rows(rows, options.json)
    return 0


def _row(
    file: str, mode: str, solution: Solution, seconds: float, *, masked: bool
) -> dict[str, str | float]:
    others = (solution.choice, *solution.runners_up)
    best = min(c.bottleneck for c in others if masked or len(c.replicas) == 1)
    bound = max(b.seconds for b in solution.bounds if b.covers_replicas or not masked)
    row: dict[str, str | float] = {
        "file": file,
        "mode": mode,
        "bottleneck": best,
        "lower_bound": bound,
        "ratio": best / bound,
        "seconds": round(seconds, 3),
    }
    greedy = next((c for c in others if "priority" in c.names), None)
    if masked and greedy is not None:
        row["priority_ratio"] = greedy.bottleneck / bound
    return row


if __name__ == "__main__":
    sys.exit(main())

"""``hetero run --profile``: where the time of requests went, beside what a cost file expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType

from hetero.cli.model_command import Job
from hetero.cli.option_types import together
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import plans_by_cost
from hetero.cli.query import command_line
from hetero.cli.terminal import progress
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.model import Model
from hetero.formatting import counted, seconds_text
from hetero.planning.plan_report import PlanReport
from hetero.report import build_report, report_html
from hetero.scheduler.formats.publish import publish
from hetero.terminal_tables import Columns, ms, table

#: Rows of a table before the rest is counted.
SHOWN: Final = 20
#: Names of nodes that one executed node covers before the rest is counted.
COVERED: Final = 4


#: Adds ``--profile`` and ``--html``.
profile_options: Final = together(
    click.option(
        "--profile",
        is_flag=True,
        help="Time each node, stage and transfer; with --costs beside what was expected.",
    ),
    output_file(
        "--html",
        metavar="FILE.html",
        help="With --profile: write the report as one page, measured beside predicted.",
    ),
)


def profiled(
    config: dict[str, Any], wanted: bool, html: Path | None
) -> tuple[dict[str, Any], str | None]:
    """Return what to compile with, and the cost file that only tells what was expected."""
    if not wanted:
        if html:
            raise click.UsageError("--html: for --profile; `hetero query --html` runs nothing.")
        return config, None
    config = {**config, "PERF_COUNT": True}
    aside = None if plans_by_cost(config) else config.pop("COST_FILE", None)
    return config, aside


def expected(
    job: Job, compiled: CompiledModel, source: Model | None, costs: str | None
) -> PlanReport | None:
    """Return what was expected of a model: its plan's prediction, or a cost file's."""
    if costs is None or source is None:
        return compiled.plan_report
    judged = {**job.config, "MODEL_DISTRIBUTION_POLICY": "PRIORITY", "COST_FILE": costs}
    with progress("judging by the cost file"):
        return job.core.plan_model(source, job.device, judged, affinity=job.pins or None)


def write_page(
    path: Path, job: Job, source: Model, plan: PlanReport | None, profile: dict[str, Any]
) -> None:
    """Write the report's page, with what was measured in it."""
    with progress("asking the devices"):
        survey = job.survey(source)
    document = build_report(survey, plan, command=command_line())
    page = report_html({**document, "measured": profile})
    publish(path, lambda file: file.write(page.encode()))


def profile_parts(profile: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield `hetero.report.run_profile.build_profile`'s document for people."""
    nodes, stages = profile["nodes"], profile["stages"]
    predicted = any(row["predicted_s"] is not None for row in (*nodes, *stages))
    ranked = sorted(nodes, key=lambda row: -(row["seconds"] or 0.0))
    beside: Columns = {"predicted ms": ms("predicted_s")} if predicted else {}
    columns: Columns = {
        "node": _covers,
        "operator": "op_type",
        "device": "device",
        "subgraph": "stage",
        "ms": ms("seconds"),
        "share": ("share", "{:.1%}".format),
    }
    yield table(ranked[:SHOWN], {**columns, **beside}, wraps=("node",))
    if len(ranked) > SHOWN:
        left = sum(row["share"] or 0.0 for row in ranked[SHOWN:])
        yield f"… and {len(ranked) - SHOWN} more with {left:.1%}; --json lists all"
    columns = {
        "subgraph": "stage",
        "device": "device",
        "arrives ms": ms("arrives_s"),
        "waits ms": ms("queued_s"),
        "upload ms": ms("upload_s"),
        "runs ms": ms("infer_s"),
        "download ms": ms("download_s"),
        "in its nodes ms": ms("nodes_s"),
    }
    yield table(stages[:SHOWN], {**columns, **beside})
    if len(stages) > SHOWN:
        yield f"… and {len(stages) - SHOWN} more; --json lists all"
    spans = profile["request"]
    yield (
        f"medians of {counted(profile['requests'], 'request')}: "
        f"{seconds_text(spans['latency_s'])}; {seconds_text(spans['infer_s'])} in subgraphs, "
        f"{seconds_text(spans['preprocess_s'])} preprocessing, "
        f"{seconds_text(spans['admission_s'])} admission, "
        f"{seconds_text(spans['postprocess_s'])} postprocessing"
    )
    most: dict[str, int] = {}
    for node in nodes:
        most[node["device"]] = max(most.get(node["device"], 0), node["readings"])
    if once := sorted(device for device, readings in most.items() if readings == 1):
        yield f"{', '.join(once)} told one time of each node, the same for every request"
    if untimed := sorted({node["device"] for node in nodes if not node["readings"]}):
        yield f"not every node is timed on {', '.join(untimed)}"


def _covers(row: Mapping[str, Any]) -> str:
    """Return the model's nodes that an executed one stands for."""
    names = row["covers"] or row["folded"]
    if not names:
        return f"({row['name']}: of no node)"
    more = f" and {len(names) - COVERED} more" if len(names) > COVERED else ""
    return " + ".join(names[:COVERED]) + more

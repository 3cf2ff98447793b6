"""``hetero run --profile``: measured times of nodes, stages and transfers against predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType

from hetero.cli.model_command import ModelCommand
from hetero.cli.option_types import combine_options
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import plans_by_cost
from hetero.cli.query import command_line
from hetero.cli.terminal import progress
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.model.model import Model
from hetero.formatting import count_text, seconds_text
from hetero.planning.plan_report import PlanReport
from hetero.report import build_report, report_html
from hetero.report.terminal_report import memory_table
from hetero.scheduler.formats.publish import publish
from hetero.terminal_tables import Columns, ms, table

#: Rows of a table before the rest is counted.
MAX_ROWS: Final = 20
#: Listed names of the nodes that an executed node covers; the rest is counted.
MAX_COVERED: Final = 4


#: Adds ``--profile`` and ``--html``.
profile_options: Final = combine_options(
    click.option(
        "--profile",
        is_flag=True,
        help="Time each node, stage and transfer; with --costs also show predicted times.",
    ),
    output_file(
        "--html",
        metavar="FILE.html",
        help="With --profile: write an HTML report with measured and predicted times.",
    ),
)


def profile_config(
    config: dict[str, Any], profile: bool, html: Path | None
) -> tuple[dict[str, Any], str | None]:
    """Return the configuration to compile with, and the cost file if it is only for predictions."""
    if not profile:
        if html:
            raise click.UsageError(
                "--html needs --profile; `hetero query --html` writes a report without running."
            )
        return config, None
    config = {**config, "PERF_COUNT": True}
    cost_file = None if plans_by_cost(config) else config.pop("COST_FILE", None)
    return config, cost_file


def predicted_plan(
    command: ModelCommand, compiled: CompiledModel, source: Model | None, costs: str | None
) -> PlanReport | None:
    """Return the prediction: that of the model's plan, or one by the cost file."""
    if costs is None or source is None:
        return compiled.plan_report
    config = {**command.config, "MODEL_DISTRIBUTION_POLICY": "PRIORITY", "COST_FILE": costs}
    with progress("predicting times by the cost file"):
        return command.core.plan_model(
            source, command.device, config, affinity=command.pins or None
        )


def write_html(
    path: Path,
    command: ModelCommand,
    source: Model,
    plan: PlanReport | None,
    profile: dict[str, Any],
) -> None:
    """Write the HTML report with the measured profile."""
    with progress("querying the devices"):
        survey = command.survey(source)
    document = build_report(survey, plan, command=command_line())
    page = report_html({**document, "measured": profile})
    publish(path, lambda file: file.write(page.encode()))


def render_profile(profile: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield tables of a document from `hetero.report.run_profile.build_profile`."""
    nodes, stages = profile["nodes"], profile["stages"]
    predicted = any(row["predicted_s"] is not None for row in (*nodes, *stages))
    ranked = sorted(nodes, key=lambda row: -(row["seconds"] or 0.0))
    prediction: Columns = {"predicted ms": ms("predicted_s")} if predicted else {}
    columns: Columns = {
        "node": _describe_coverage,
        "operator": "op_type",
        "device": "device",
        "subgraph": "stage",
        "ms": ms("seconds"),
        "share": ("share", "{:.1%}".format),
    }
    yield table(ranked[:MAX_ROWS], {**columns, **prediction}, wraps=("node",))
    if len(ranked) > MAX_ROWS:
        share = sum(row["share"] or 0.0 for row in ranked[MAX_ROWS:])
        yield f"… and {len(ranked) - MAX_ROWS} more with {share:.1%}; --json lists all"
    columns = {
        "subgraph": "stage",
        "device": "device",
        "input delay ms": ms("arrives_s"),
        "queue ms": ms("queued_s"),
        "upload ms": ms("upload_s"),
        "run ms": ms("infer_s"),
        "download ms": ms("download_s"),
        "nodes ms": ms("nodes_s"),
    }
    yield table(stages[:MAX_ROWS], {**columns, **prediction})
    if len(stages) > MAX_ROWS:
        yield f"… and {len(stages) - MAX_ROWS} more; --json lists all"
    if profile.get("memory"):
        yield memory_table(profile["memory"])
    spans = profile["request"]
    yield (
        f"medians of {count_text(profile['requests'], 'request')}: "
        f"{seconds_text(spans['latency_s'])}; {seconds_text(spans['infer_s'])} in subgraphs, "
        f"{seconds_text(spans['preprocess_s'])} preprocessing, "
        f"{seconds_text(spans['admission_s'])} admission, "
        f"{seconds_text(spans['postprocess_s'])} postprocessing"
    )
    max_readings: dict[str, int] = {}
    for node in nodes:
        device = node["device"]
        max_readings[device] = max(max_readings.get(device, 0), node["readings"])
    if timed_once := sorted(device for device, count in max_readings.items() if count == 1):
        yield f"{', '.join(timed_once)}: each node was timed once, not in every request"
    if untimed := sorted({node["device"] for node in nodes if not node["readings"]}):
        yield f"{', '.join(untimed)}: some nodes are not timed"


def _describe_coverage(row: Mapping[str, Any]) -> str:
    """Return the names of the model's nodes that an executed node computes."""
    names = row["covers"] or row["folded"]
    if not names:
        return f"({row['name']}: not a node of the model)"
    more = f" and {len(names) - MAX_COVERED} more" if len(names) > MAX_COVERED else ""
    return " + ".join(names[:MAX_COVERED]) + more

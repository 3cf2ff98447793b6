"""``hetero inspect``: show the contents of a model or blob, without devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType

from hetero.cache.blob import describe_blob
from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import is_blob
from hetero.cli.option_types import json_option
from hetero.cli.terminal import print_result, show, wants_json
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.formatting import count_text, nbytes_text
from hetero.report.document import describe_model
from hetero.report.terminal_report import model_line, port_lines
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.weightless import is_weightless, outline
from hetero.terminal_tables import Columns, table

#: Blobs up to this size are always verified.
_VERIFY_NBYTES: Final = 2**28


@click.command("inspect", cls=SectionedCommand)
@click.argument("model")
@click.option("--verify", is_flag=True, help="Also verify every checksum of a large blob.")
@json_option
def inspect_command(model: str, verify: bool) -> None:
    """Show the inputs, outputs and operators of MODEL; for a blob also its devices and stages."""
    if is_blob(model):
        _inspect_blob(model, verify)
        return
    if verify:
        raise click.UsageError(f"--verify needs a blob; {model} is a model.")
    source = read_model(model)
    document = {**describe_model(source), "operators": _operators(source)}
    columns: Columns = {
        "operator": lambda row: f"{row['domain']}.{row['op_type']}".lstrip("."),
        "nodes": "{nodes:,}",
    }
    parts: list[RenderableType] = [model_line(document), *port_lines(document)]
    print_result(
        "inspect", {"kind": "onnx", **document}, [*parts, table(document["operators"], columns)]
    )


def _operators(model: Model) -> list[dict[str, Any]]:
    counts = Counter((node.domain, node.op_type) for node in model.nodes)
    return [
        {"op_type": op_type, "domain": domain, "nodes": count}
        for (domain, op_type), count in sorted(counts.items(), key=lambda c: (-c[1], c[0]))
    ]


def _inspect_blob(file: str, verify: bool) -> None:
    weightless = is_weightless(file)
    if weightless and verify:
        raise click.UsageError(f"--verify: {file} lacks its weights, so it cannot be verified.")
    blob = BlobFile(outline(file) if weightless else file)
    if verify or (not weightless and blob.nbytes <= _VERIFY_NBYTES):
        blob.verify()
    # Blobs of the same compilation are equal, so the date is the file's.
    written = datetime.fromtimestamp(Path(file).stat().st_mtime, UTC)
    document = {
        **describe_blob(blob),
        "weightless": weightless,
        "written": written.isoformat(timespec="seconds"),
    }
    print_result("inspect", document, _blob_parts(file, document))
    if verify and not wants_json():
        show("all checksums match")


def _blob_parts(file: str, document: dict[str, Any]) -> Iterator[RenderableType]:
    in_file = f", of which {nbytes_text(Path(file).stat().st_size)} in this file,"
    in_file = in_file if document["weightless"] else ""
    yield (
        f"{document['name']}: {document['kind']}, format {document['format_version']}, hetero "
        f"{document['hetero']}, {nbytes_text(document['nbytes'])}"
        f"{in_file} in "
        f"{count_text(document['segments'], 'segment')}"
    )
    yield f"written {document['written']}; model {document['content_hash'] or 'unknown'} (SHA-256)"
    yield from port_lines(document)
    devices = ({"device": name, **record} for name, record in document["devices"].items())
    columns: Columns = {name: name for name in ("device", "plugin", "version")}
    columns["drivers and hardware"] = "fingerprint"
    yield table(devices, columns, wraps=("version", "drivers and hardware"))
    if document["stages"]:
        absent = "in the cache" if document["kind"] == "plan" else "compiled on import"
        stages: Columns = {
            "stage": "index",
            "device": "device",
            "nodes": "nodes",
            "export": lambda row: (
                absent if row["export_nbytes"] is None else nbytes_text(row["export_nbytes"])
            ),
            "inputs": lambda row: len(row["inputs"]),
            "outputs": lambda row: len(row["outputs"]),
        }
        yield table(document["stages"], stages)
    options = {**document["options"]}
    for device, device_options in document["device_options"].items():
        options |= {f"{device}.{name}": value for name, value in device_options.items()}
    # Empty values and 0 are defaults.
    if changed_options := {name: value for name, value in options.items() if value}:
        yield "options: " + ", ".join(f"{n}={value}" for n, value in changed_options.items())

"""``hetero blob``: what is in a blob, by its header alone."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from hetero.blob import describe
from hetero.cli.options import OUT, print_json
from scheduler.blob_file import BlobFile


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--verify", is_flag=True, help="Read all of it and check every checksum.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def blob(file: Path, verify: bool, as_json: bool) -> None:
    """Show what is in FILE: a compiled model, or an entry of the cache."""
    opened = BlobFile(file)
    if verify:
        opened.verify()
    document = describe(opened)
    if as_json:
        print_json(document)
        return
    OUT.print(
        f"{document['name']}: {document['kind']}, format {document['format_version']}, hetero "
        f"{document['hetero']}, {size(document['nbytes'])} in {document['segments']} segments"
    )
    devices = Table("device", "plugin", "version", "fingerprint")
    for name, record in document["devices"].items():
        devices.add_row(name, *(str(record[k]) for k in ("plugin", "version", "fingerprint")))
    OUT.print(devices)
    for kind in ("inputs", "outputs"):
        for port in document[kind]:
            OUT.print(f"{kind[:-1]} {port['name']}: {port['type']} {port['shape']}")
    if document["stages"]:
        stages = Table("stage", "device", "nodes", "export", "inputs", "outputs")
        for row in document["stages"]:
            absent = "in the cache" if document["kind"] == "plan" else "compiled on import"
            export = absent if row["export_nbytes"] is None else None
            stages.add_row(
                str(row["index"]),
                row["device"],
                str(row["nodes"]),
                export or size(row["export_nbytes"]),
                str(len(row["inputs"])),
                str(len(row["outputs"])),
            )
        OUT.print(stages)
    options = dict(document["options"])
    for device, given in document["device_options"].items():
        options |= {f"{device}.{name}": value for name, value in given.items()}
    if options:
        OUT.print("options: " + ", ".join(f"{n}={v}" for n, v in options.items()))
    if verify:
        OUT.print("every checksum is right")


def size(nbytes: int) -> str:
    """Return a number of bytes for people."""
    value: float = nbytes
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"

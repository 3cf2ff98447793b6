"""``hetero devices`` and ``hetero probe``: what is here, could be here, and a node offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from hetero.cli.job import Job
from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import progress, tell
from hetero.report.text import table
from scheduler.device.probe import probe_node
from scheduler.vocabulary.rows import THIS_PROCESS


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device's name of which the first part is a plugin's.

    Attributes
    ----------
    what : str
        What it is.
    install : str
        The command that brings it.
    missing : str
        Why there is none, where no plugin says it.
    """

    what: str
    install: str
    missing: str = ""


def _provider(what: str, wheel: str, provider: str) -> KnownDevice:
    return KnownDevice(
        f"ONNX Runtime on {what}",
        # All of them are one package, `onnxruntime`: an environment holds one of them.
        f"pip uninstall -y onnxruntime && pip install {wheel}",
        f"no onnxruntime here has {provider}ExecutionProvider; its wheel takes the place of others",
    )


KNOWN: Final[Mapping[str, KnownDevice]] = {
    "CPU": KnownDevice("numpy kernels", "pip install hetero"),
    "ORT": KnownDevice("ONNX Runtime on the CPU", "pip install 'hetero[ort]'"),
    "OV": KnownDevice("OpenVINO: CPUs, GPUs, NPUs", "pip install 'hetero[openvino]'"),
    "GPU": KnownDevice("NVIDIA GPUs, by CuPy on the CPU's kernels", "pip install 'hetero[gpu]'"),
    "ORT_CUDA": _provider("NVIDIA GPUs", "onnxruntime-gpu", "CUDA"),
    "ORT_TENSORRT": _provider("NVIDIA GPUs through TensorRT", "onnxruntime-gpu", "Tensorrt"),
    "ORT_OPENVINO": _provider("OpenVINO", "onnxruntime-openvino", "OpenVINO"),
    "ORT_MIGRAPHX": _provider("AMD GPUs", "onnxruntime-migraphx", "MIGraphX"),
    "ORT_QNN": _provider("Qualcomm's NPUs", "onnxruntime-qnn", "QNN"),
    "NULL": KnownDevice("no compute: scripted times, to measure with", "pip install hetero"),
}


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that are not installed.")
@core_options
@with_core
def devices(job: Job, everything: bool) -> None:
    """List the devices, with the error of each plugin that does not work."""
    with progress("asking every node for its devices"):
        found = job.core.device_descriptors
    rows: list[dict[str, Any]] = [
        {
            "name": d.name,
            "plugin": d.plugin,
            "node": d.node,
            "full_name": d.full_name,
            "version": d.version,
            "capabilities": list(d.capabilities),
            "threads": d.num_threads,
            "python": d.source.python if d.source else None,
            "error": d.error,
        }
        for d in found
    ]
    if everything:
        rows = [*rows, *_absent({d.plugin for d in found})]
        for row in rows:
            known = KNOWN.get(row["plugin"])
            row["install"] = known.install if known and row["error"] else None
            row["full_name"] = row["full_name"] or (known.what if known else "")
    heads = {"device": "name", "threads": "threads"}
    heads |= {head: head for head in ("node", "python") if any(_said(row[head]) for row in rows)}
    heads["what it is"] = "full_name"
    working = [row for row in rows if not row["error"]]
    shown = table(working, {**heads}, wraps=("python", "what it is"))
    tell("devices", {"devices": rows}, [shown, *(_why_not(row) for row in rows if row["error"])])


def _why_not(row: dict[str, Any]) -> str:
    name = f"{row['name']} on {row['node']}" if _said(row["node"]) else row["name"]
    install = row.get("install") or ""
    fix = f" To install: {install}" if install and install not in row["error"] else ""
    return f"{name}: {row['error'].rstrip('.')}.{fix}"


def _said(place: str | None) -> bool:
    """Return whether a node or interpreter needs saying: it is not simply this one."""
    return place not in (None, "", "local")


def _absent(plugins: set[str]) -> list[dict[str, Any]]:
    """Return rows of the known devices that no node has."""
    return [
        {
            "name": name,
            "plugin": name,
            "node": "",
            "full_name": known.what,
            "version": "",
            "capabilities": [],
            "threads": 0,
            "python": None,
            "error": known.missing or "its plugin is not installed",
        }
        for name, known in KNOWN.items()
        if name not in plugins
    ]


@click.command()
def probe() -> None:
    """Print this node's devices as Ray labels: for ``ray start --labels="$(hetero probe)"``.

    What it prints is how many devices of each plugin the node offers; edit it to offer other
    numbers. It succeeds with broken plugins too, which it reports on the error stream: such a
    node still starts.
    """
    rows = probe_node(THIS_PROCESS)
    for row in rows:
        if row.error is not None:
            click.echo(f"hetero: {row.plugin} is not offered: {row.error}", err=True)
    offered = Counter(row.plugin for row in rows if row.error is None)
    click.echo(",".join(f"hetero/{plugin}={count}" for plugin, count in offered.items()))

"""``hetero devices`` and ``hetero probe``: what is here, could be here, and a node offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from hetero.cli.model_command import Job
from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import progress, tell
from hetero.scheduler.device.probe import probe_node
from hetero.scheduler.vocabulary.rows import THIS_PROCESS, DeviceDescriptor
from hetero.terminal_tables import table


class KnownDevice(NamedTuple):
    """A device whose plugin is known: what it is, and the command that brings it."""

    what: str
    install: str
    #: Why there is none, where no plugin says it.
    missing: str = "its plugin is not installed"


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
        found = list(job.core.device_descriptors)
    if everything:
        here = {d.plugin for d in found}
        found += (
            DeviceDescriptor(name, name, "", "", known.what, error=known.missing, num_threads=0)
            for name, known in KNOWN.items()
            if name not in here
        )
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
    for row in rows if everything else ():
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

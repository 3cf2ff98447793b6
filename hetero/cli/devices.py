"""``hetero devices`` and ``hetero probe``: installed and installable devices, and Ray labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand
from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import print_result, progress
from hetero.devices.ort.known_providers import KNOWN_PROVIDERS, KnownProvider
from hetero.devices.plugin.install_command import install_command
from hetero.scheduler.device.discovery import probe_node
from hetero.scheduler.types.device_descriptor import THIS_PROCESS, DeviceDescriptor
from hetero.terminal_tables import table


class KnownDevice(NamedTuple):
    """A device that hetero knows, and the command that installs it."""

    description: str
    install: str
    #: Reason for its absence if no plugin reports one.
    missing: str = "its plugin is not installed"


def _built_in(hardware: str, wheel: str, provider: str) -> KnownDevice:
    """Return a provider inside a wheel that replaces `onnxruntime`."""
    return KnownDevice(
        f"ONNX Runtime on {hardware}",
        # The wheels provide the same package, `onnxruntime`; an environment holds one of them.
        f"pip uninstall -y onnxruntime && pip install {wheel}",
        f"the installed onnxruntime lacks {provider}ExecutionProvider; its wheel replaces others",
    )


def _plug_in(provider: KnownProvider) -> KnownDevice:
    """Return a provider in a wheel that is installed in addition to `onnxruntime`."""
    return KnownDevice(
        f"ONNX Runtime on {provider.hardware}",
        f"pip install {provider.pip_options}{provider.wheel}",
        f"the wheel {provider.wheel}, a plug-in of onnxruntime, is not installed",
    )


KNOWN_DEVICES: Final[Mapping[str, KnownDevice]] = {
    "CPU": KnownDevice("numpy kernels", install_command()),
    "ORT": KnownDevice("ONNX Runtime on the CPU", install_command("ort")),
    "OV": KnownDevice("OpenVINO: CPUs, GPUs, NPUs", install_command("openvino")),
    "GPU": KnownDevice("NVIDIA GPUs, by CuPy on the CPU's kernels", install_command("gpu")),
    "ORT_CUDA": _built_in("NVIDIA GPUs", "onnxruntime-gpu", "CUDA"),
    "ORT_TENSORRT": _built_in("NVIDIA GPUs through TensorRT", "onnxruntime-gpu", "Tensorrt"),
    "ORT_MIGRAPHX": _built_in("AMD GPUs", "onnxruntime-migraphx", "MIGraphX"),
    **{name: _plug_in(provider) for name, provider in KNOWN_PROVIDERS.items()},
    "NULL": KnownDevice("no compute: scripted times, to measure with", install_command()),
}


@click.command(cls=SectionedCommand)
@click.option("--all", "everything", is_flag=True, help="Also list devices that are not installed.")
@core_options
@with_core
def devices(command: ModelCommand, everything: bool) -> None:
    """List the devices, with the error of each plugin that does not work."""
    with progress("querying the devices of every node"):
        descriptors = list(command.core.device_descriptors)
    if everything:
        installed = {d.plugin for d in descriptors}
        descriptors += (
            DeviceDescriptor(
                name, name, "", "", device.description, error=device.missing, num_threads=0
            )
            for name, device in KNOWN_DEVICES.items()
            if name not in installed
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
        for d in descriptors
    ]
    for row in rows if everything else ():
        device = KNOWN_DEVICES.get(row["plugin"])
        row["install"] = device.install if device and row["error"] else None
        row["full_name"] = row["full_name"] or (device.description if device else "")
    heads = {"device": "name", "threads": "threads"}
    heads |= {
        head: head for head in ("node", "python") if any(is_remote_place(row[head]) for row in rows)
    }
    heads["description"] = "full_name"
    working_devices = [row for row in rows if not row["error"]]
    devices_table = table(working_devices, {**heads}, wraps=("python", "description"))
    print_result(
        "devices",
        {"devices": rows},
        [devices_table, *(_error_line(row) for row in rows if row["error"])],
    )


def _error_line(row: dict[str, Any]) -> str:
    name = f"{row['name']} on {row['node']}" if is_remote_place(row["node"]) else row["name"]
    install = row.get("install") or ""
    fix = f" To install: {install}" if install and install not in row["error"] else ""
    return f"{name}: {row['error'].rstrip('.')}.{fix}"


def is_remote_place(place: str | None) -> bool:
    """Whether a node or interpreter differs from this process's own."""
    return place not in (None, "", "local")


@click.command(cls=SectionedCommand)
def probe() -> None:
    """Print this node's devices as labels for ``ray start --labels="$(hetero probe)"``.

    Each label is the number of devices of one plugin; edit the numbers to offer more or fewer.
    Broken plugins are reported on stderr and omitted, so that the node still starts.
    """
    rows = probe_node(THIS_PROCESS)
    for row in rows:
        if row.error is not None:
            click.echo(f"hetero: {row.plugin} is not offered: {row.error}", err=True)
    offered = Counter(row.plugin for row in rows if row.error is None)
    click.echo(",".join(f"hetero/{plugin}={count}" for plugin, count in offered.items()))

"""``hetero doctor``: check versions, devices, cluster and system limits, and suggest fixes."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Final

import click
import numpy as np
import onnx
from packaging.requirements import Requirement
from rich.console import RenderableType

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.option_types import json_option
from hetero.cli.terminal import print_result, progress
from hetero.core import Core
from hetero.devices.errors import HeteroError
from hetero.formatting import nbytes_text
from hetero.properties.known_devices import known_devices
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.terminal_tables import Columns, table
from hetero.version import hetero_version

#: Least limit of open files: each device or client of a node needs some dozens for connections.
_MIN_OPEN_FILES: Final = 4096
#: Least shared memory: large tensors between processes of a node use it.
_MIN_SHARED_MEMORY_NBYTES: Final = 1 << 30
_SHARED_MEMORY: Final = Path("/dev/shm")
#: Extras that only developers need.
_DEVELOPER_EXTRAS: Final = {"dev", "docs", "test"}
_NOT_INSTALLED: Final = "not installed"
#: Model that runs on each device.
_MODEL: Final = """<ir_version: 8, opset_import: ["": 17]>
    doctor (float[2,3] x) => (float[2,3] y) { half = Sub(x, x) low = Add(half, x) y = Relu(low) }"""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check, with advice if something should be changed."""

    name: str
    ok: bool
    finding: str
    advice: str = ""


@click.command(cls=SectionedCommand)
@click.option("--address", help="A Ray cluster, as HOST:PORT; by default RAY_ADDRESS or the pool.")
@json_option
def doctor(address: str | None) -> None:
    """Check versions, devices, the cluster and system limits, and suggest fixes.

    Each device runs a small model in this process. The exit code is 1 if a check fails. Optional
    devices that are not installed do not fail.
    """
    with progress("checking versions, devices and the cluster"):
        packages = list(_versions())
        checks = [*packages, *_devices(), *_cluster(address), *_limits()]
    failed = [check for check in checks if not check.ok]
    rows = [{"name": c.name, "ok": c.ok, "found": c.finding, "advice": c.advice} for c in checks]
    print_result("doctor", {"checks": rows, "ok": not failed}, _parts(packages, checks))
    if failed:
        click.get_current_context().exit(1)


def _parts(packages: Sequence[Check], checks: Sequence[Check]) -> Iterator[RenderableType]:
    # Good packages fit in one line, and so do optional devices that are not installed.
    good_packages = [check for check in packages if check.ok]
    absent = [check for check in checks if check.ok and check.finding == _NOT_INSTALLED]
    yield ", ".join(f"{check.name} {check.finding}" for check in good_packages)
    columns: Columns = {
        "": lambda check: "!!" if not check.ok else "--" if check.advice else "ok",
        "check": "name",
        "finding": "finding",
        "advice": "advice",
    }
    rest = [check for check in checks if check not in good_packages and check not in absent]
    yield table(rest, columns, wraps=("finding", "advice"))
    if absent:
        names = ", ".join(sorted(check.name.removeprefix("device ") for check in absent))
        yield f"not installed: {names}; `hetero devices --all` shows how to install them."


def _versions() -> Iterator[Check]:
    yield Check("hetero", True, f"{hetero_version()}, Python {sys.version.split()[0]}")
    extras = set(metadata("hetero").get_all("Provides-Extra") or ()) - _DEVELOPER_EXTRAS
    for text in requires("hetero") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": name}) for name in extras):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            if not marker:
                yield Check(requirement.name, False, _NOT_INSTALLED, f"pip install '{requirement}'")
            continue
        fits = requirement.specifier.contains(installed, prereleases=True)
        specifier = f"'{requirement.name}{requirement.specifier}'"
        advice = "" if fits else f"tested: pip install {specifier}"
        yield Check(requirement.name, fits, installed, advice)


def _devices() -> Iterator[Check]:
    model = onnx.parser.parse_model(_MODEL)
    with Core("inprocess") as core:
        rows = core.device_descriptors
        for row in rows:
            yield _check_absent(row) if row.error is not None else _check_run(core, row, model)
    for name in known_devices().keys() - {row.plugin for row in rows}:
        yield Check(
            f"device {name}", True, _NOT_INSTALLED, f"optional: {known_devices()[name].install}"
        )


def _check_absent(row: DeviceDescriptor) -> Check:
    """Check a plugin that failed to load: a missing package is fine, any other error is not."""
    device, error = known_devices().get(row.plugin), str(row.error)
    optional = device is not None and "pip install" in error
    advice = f"optional: {device.install}" if device else "see the plugin's documentation"
    return Check(f"device {row.plugin}", optional, error, advice)


def _check_run(core: Core, row: DeviceDescriptor, model: onnx.ModelProto) -> Check:
    values = np.array([[-1, 0, 1], [2, -3, 4]], np.float32)
    finding = "wrong result"
    try:
        with core.compile_model(model, row.name) as compiled:
            result = compiled(values)[0]
        if row.plugin == "NULL" or np.array_equal(result, np.maximum(values, 0)):
            return Check(f"device {row.name}", True, f"{row.full_name}, version {row.version}")
    except HeteroError as error:
        finding = str(error)
    return Check(f"device {row.name}", False, finding, f"hetero check-device {row.name}")


def _cluster(address: str | None) -> Iterator[Check]:
    from hetero.scheduler.ray.address import check_reachable
    from hetero.scheduler.ray.local_cluster import find_head

    cluster = address or os.environ.get("RAY_ADDRESS") or find_head()
    if cluster is None:
        finding = "none; commands start Ray themselves"
        yield Check("cluster", True, finding, "optional: hetero pool up")
    elif ":" in cluster:
        try:
            check_reachable(cluster, 2.0)
            yield Check("cluster", True, f"{cluster} responds")
        except HeteroError as error:
            advice = "check `ray status`, the port, and RAY_ADDRESS"
            yield Check("cluster", False, str(error), advice)


def _limits() -> Iterator[Check]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = files == resource.RLIM_INFINITY or files >= _MIN_OPEN_FILES
    advice = "" if is_enough else f"ulimit -n {_MIN_OPEN_FILES}"
    yield Check("open files", is_enough, str(files), advice)
    if _SHARED_MEMORY.is_dir():
        free_nbytes = shutil.disk_usage(_SHARED_MEMORY).free
        is_enough = free_nbytes >= _MIN_SHARED_MEMORY_NBYTES
        advice = "" if is_enough else "docker run --shm-size=2g, or remount /dev/shm larger"
        yield Check("shared memory", is_enough, f"{nbytes_text(free_nbytes)} free", advice)
    yield Check("cores", True, str(len(os.sched_getaffinity(0))))

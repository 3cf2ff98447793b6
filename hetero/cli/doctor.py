"""``hetero doctor``: what is here, what works, and what to do about what does not."""

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

from hetero.cli.devices import KNOWN
from hetero.cli.option_types import json_option
from hetero.cli.terminal import progress, tell
from hetero.core import Core
from hetero.devices.errors import HeteroError
from hetero.formatting import nbytes_text
from hetero.scheduler.vocabulary.rows import DeviceDescriptor
from hetero.terminal_tables import Columns, table
from hetero.version import hetero_version

#: Each connection between processes is a file; a node's devices and clients have some dozens each.
_FILES: Final = 4096
#: Large tensors between processes of a node are in shared memory.
_SHARED_MEMORY_NBYTES: Final = 1 << 30
_SHARED_MEMORY: Final = Path("/dev/shm")
#: Extras that no user's program needs.
_OF_DEVELOPERS: Final = {"dev", "docs", "test"}
_NOT_INSTALLED: Final = "not installed"
#: What is run on each device.
_MODEL: Final = """<ir_version: 8, opset_import: ["": 17]>
    doctor (float[2,3] x) => (float[2,3] y) { half = Sub(x, x) low = Add(half, x) y = Relu(low) }"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: whether it is well, what was found, and what to do where it is not."""

    name: str
    ok: bool
    found: str
    advice: str = ""


@click.command()
@click.option("--address", help="A Ray cluster, as HOST:PORT; by default RAY_ADDRESS or the pool.")
@json_option
def doctor(address: str | None) -> None:
    """Check versions, devices, the cluster and limits of this machine; say what to do.

    Each device runs a small model in this process. The exit code is 1 if anything is wrong;
    a device that is not installed is not.
    """
    with progress("looking at versions, devices and the cluster"):
        packages = list(_versions())
        found = [*packages, *_devices(), *_cluster(address), *_limits()]
    wrong = [check for check in found if not check.ok]
    tell("doctor", {"checks": found, "ok": not wrong}, _parts(packages, found))
    if wrong:
        click.get_current_context().exit(1)


def _parts(packages: Sequence[Check], found: Sequence[Check]) -> Iterator[RenderableType]:
    # Packages that are well fit in a line, and so do devices that nobody asked for.
    well = [check for check in packages if check.ok]
    absent = [check for check in found if check.ok and check.found == _NOT_INSTALLED]
    yield ", ".join(f"{check.name} {check.found}" for check in well)
    columns: Columns = {
        "": lambda check: "!!" if not check.ok else "--" if check.advice else "ok",
        "what": "name",
        "found": "found",
        "what to do": "advice",
    }
    rest = [check for check in found if check not in well and check not in absent]
    yield table(rest, columns, wraps=("found", "what to do"))
    if absent:
        names = ", ".join(sorted(check.name.removeprefix("device ") for check in absent))
        yield f"not installed: {names}; hetero devices --all says how."


def _versions() -> Iterator[Check]:
    yield Check("hetero", True, f"{hetero_version()}, Python {sys.version.split()[0]}")
    extras = set(metadata("hetero").get_all("Provides-Extra") or ()) - _OF_DEVELOPERS
    for text in requires("hetero") or ():
        wanted = Requirement(text)
        marker = wanted.marker
        if marker and not any(marker.evaluate({"extra": name}) for name in extras):
            continue
        try:
            here = version(wanted.name)
        except PackageNotFoundError:
            if not marker:
                yield Check(wanted.name, False, _NOT_INSTALLED, f"pip install '{wanted}'")
            continue
        fits = wanted.specifier.contains(here, prereleases=True)
        asked = f"'{wanted.name}{wanted.specifier}'"
        yield Check(wanted.name, fits, here, "" if fits else f"tested: pip install {asked}")


def _devices() -> Iterator[Check]:
    model = onnx.parser.parse_model(_MODEL)
    with Core("inprocess") as core:
        rows = core.device_descriptors
        for row in rows:
            yield _absent(row) if row.error is not None else _runs(core, row, model)
    for name in KNOWN.keys() - {row.plugin for row in rows}:
        yield Check(f"device {name}", True, _NOT_INSTALLED, f"optional: {KNOWN[name].install}")


def _absent(row: DeviceDescriptor) -> Check:
    """A plugin whose package is not there is optional; one that breaks otherwise is not well."""
    known, error = KNOWN.get(row.plugin), str(row.error)
    optional = known is not None and "pip install" in error
    advice = f"optional: {known.install}" if known else "see what the plugin's author says"
    return Check(f"device {row.plugin}", optional, error, advice)


def _runs(core: Core, row: DeviceDescriptor, model: onnx.ModelProto) -> Check:
    given = np.array([[-1, 0, 1], [2, -3, 4]], np.float32)
    found = "a wrong answer"
    try:
        with core.compile_model(model, row.name) as compiled:
            answer = compiled(given)[0]
        if row.plugin == "NULL" or np.array_equal(answer, np.maximum(given, 0)):
            return Check(f"device {row.name}", True, f"{row.full_name}, version {row.version}")
    except HeteroError as error:
        found = str(error)
    return Check(f"device {row.name}", False, found, f"hetero check-device {row.name}")


def _cluster(address: str | None) -> Iterator[Check]:
    from hetero.scheduler.ray.address import check_reachable
    from hetero.scheduler.ray.own_head import find_head

    known = address or os.environ.get("RAY_ADDRESS") or find_head()
    if known is None:
        none = "none; commands start Ray themselves"
        yield Check("cluster", True, none, "optional: hetero pool up")
    elif ":" in known:
        try:
            check_reachable(known, 2.0)
            yield Check("cluster", True, f"{known} answers")
        except HeteroError as error:
            advice = "is it up (ray status), is its port open, and is RAY_ADDRESS meant?"
            yield Check("cluster", False, str(error), advice)


def _limits() -> Iterator[Check]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = files == resource.RLIM_INFINITY or files >= _FILES
    yield Check("open files", many, str(files), "" if many else f"ulimit -n {_FILES}")
    if _SHARED_MEMORY.is_dir():
        free = shutil.disk_usage(_SHARED_MEMORY).free
        enough = free >= _SHARED_MEMORY_NBYTES
        advice = "" if enough else "docker run --shm-size=2g, or remount /dev/shm larger"
        yield Check("shared memory", enough, f"{nbytes_text(free)} free", advice)
    yield Check("cores", True, str(len(os.sched_getaffinity(0))))

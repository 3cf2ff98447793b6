"""Files in `deploy/`: their commands and options exist, and their probes are answered."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement

from hetero.cli.main import cli
from tests.support.serving import ask, plus_one, serving

ROOT = Path(__file__).parents[4]
DEPLOY = ROOT / "deploy"


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a ``hetero`` command, parsed by the command line."""
    assert Path(words[0]).name == "hetero"
    command: Any = cli
    rest = list(words[1:])
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    return command.make_context("hetero", rest).params


def instructions() -> list[tuple[str, str]]:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in lines if not line.startswith("#"))
        if word
    ]


def test_dockerfile_copies_and_starts_existing_things():
    rows = instructions()
    for word, rest in rows:
        if word == "COPY":
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name
    commands = " ".join(rest for word, rest in rows if word == "RUN")
    extras = re.search(r"\.\[([\w,]+)\]", commands)
    assert extras
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    by_name = dict(rows)
    options = parsed(json.loads(by_name["ENTRYPOINT"]) + json.loads(by_name["CMD"]))
    assert {str(options["port"]), str(options["grpc_port"])} == set(by_name["EXPOSE"].split())


def test_kuberay_manifest_has_valid_options_and_probes():
    pytest.importorskip("uvicorn")
    cluster, deployment, service = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [ray] = [r for r in map(Requirement, project["dependencies"]) if r.name == "ray"]
    assert ray.specifier.contains(cluster["spec"]["rayVersion"])
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    options = parsed(entry + container["args"])
    assert options["address"] == f"{cluster['metadata']['name']}-head-svc:6379"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": options["port"], "grpc": options["grpc_port"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > options["drain_s"] + 5
    with serving(plus=plus_one()) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert ask(server, container[probe]["httpGet"]["path"]).status == 200


@pytest.mark.parametrize("name", ["hetero-pool", "hetero-serve"])
def test_systemd_units_have_valid_commands(name, tmp_path):
    reader = configparser.RawConfigParser(strict=True)
    reader.optionxform = str  # type: ignore[assignment,method-assign]
    reader.read(DEPLOY / f"{name}.service")
    service = dict(reader["Service"])
    for key in ("ExecStart", "ExecStop"):
        if key in service:
            options = parsed(shlex.split(service[key].replace("%h", "/home/me")))
            if "drain_s" in options:
                assert float(service["TimeoutStopSec"]) > options["drain_s"]
    if shutil.which("systemd-analyze"):
        unit = tmp_path / f"{name}.service"
        text = (DEPLOY / f"{name}.service").read_text()
        unit.write_text(re.sub(r"%h/hetero/bin/hetero", "/bin/true", text))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
        )
        assert "Unknown" not in done.stderr, done.stderr

"""Releases: versions agree; the workflow tests before it publishes, without a password."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support import release_version

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def test_changelog_begins_with_the_version_of_the_package():
    version = release_version.package_version()
    assert release_version.changelog_version() in (version, f"{version} (unreleased)")


def test_tag_of_another_version_is_an_error(capsys):
    assert release_version.main("v9.8.7") == 1
    assert "pyproject.toml: expected version 9.8.7 of tag v9.8.7" in capsys.readouterr().err


def test_workflow_publishes_after_the_checks_without_a_password():
    build, publish = WORKFLOW["jobs"]["build"], WORKFLOW["jobs"]["publish"]
    commands = "\n".join(step.get("run", "") for step in build["steps"])
    positions = [
        commands.index(text)
        for text in ("release_version.py", "pytest", "python -m build", "twine check", "hetero run")
    ]
    assert positions == sorted(positions)
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("password" in step.get("with", {}) for step in publish["steps"])


def test_workflow_builds_as_ci_does():
    text = (ROOT / ".ci" / "run").read_text()
    for command in (
        "python -m build",
        "twine check --strict",
        "hetero doctor",
        "hetero run light:",
    ):
        assert command in text
        assert command in (ROOT / ".github" / "workflows" / "release.yml").read_text()

"""Entry points of installed packages are read again after a change of the module path."""

import os
from importlib import metadata

from hetero.devices.plugin.entry_points import installed_points

GROUP = "hetero.tests"


def install(folder, name):
    info = folder / f"{name}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = module:{name}\n")


def test_package_installed_later_is_listed(tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    install(folder, "first")
    monkeypatch.syspath_prepend(folder)
    assert [(row.point.name, *row[1:]) for row in installed_points(GROUP)] == [
        ("first", "first", "1.5")
    ]
    install(folder, "second")
    os.utime(folder, (1e9, 1e9))  # the clock of a file system may be too coarse for the difference
    assert {row.distribution for row in installed_points(GROUP)} == {"first", "second"}
    monkeypatch.syspath_prepend(tmp_path / "other")
    install(tmp_path / "other", "third")
    assert len(installed_points(GROUP)) == 3


def test_unchanged_packages_are_read_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: calls.append(group) or [])
    assert installed_points("hetero.a") == installed_points("hetero.a") == ()
    assert installed_points("hetero.b") == ()
    assert calls == ["hetero.a", "hetero.b"]

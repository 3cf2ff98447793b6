"""Plugins are found, and broken ones are rows."""

import errno
from importlib import metadata

import pytest

from hetero.devices import Plugin, Program, find_plugin, load_plugins
from hetero.devices.errors import PluginLoadError, UnknownDeviceError

EXAMPLE = "hetero.examples.third_party_plugin:DensePlugin"


def make(plugin_name, **attributes):
    methods = {
        "name": plugin_name,
        "refuse": lambda self, node, model, config: None,
        "compile": lambda self, model, config: Program(),
        **attributes,
    }
    return type("Made", (Plugin,), methods)


def test_module_and_attribute():
    entry = load_plugins([EXAMPLE], entry_points=False)["DENSE"]
    assert entry.error is None
    assert entry.origin == EXAMPLE
    assert entry.plugin.name == "DENSE"


def test_plugins_that_cannot_be_listed_for_want_of_descriptors_say_so(monkeypatch):
    def full(group):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metadata, "entry_points", full)
    with pytest.raises(PluginLoadError, match=r"Too many open files.*ulimit"):
        load_plugins()


def test_a_function_gives_the_plugins_that_it_finds():
    def found():
        return [make("LEFT"), make("RIGHT", __init__=lambda self: 1 / 0)]

    entries = load_plugins([found], entry_points=False)
    assert list(entries) == ["LEFT", "RIGHT"]
    assert entries["LEFT"].plugin.name == "LEFT"
    assert "division by zero" in entries["RIGHT"].error
    (row,) = load_plugins([lambda: 1 / 0], entry_points=False).values()
    assert "division by zero" in row.error


def test_what_a_function_found_before_it_failed_stays():
    def found():
        yield make("LEFT")
        raise OSError("no more")

    left, failed = load_plugins([found], entry_points=False).values()
    assert left.plugin.name == "LEFT"
    assert "no more" in failed.error


def test_a_class():
    entry = load_plugins([make("MINE")], entry_points=False)["MINE"]
    assert isinstance(entry.plugin, Plugin)


def test_builtin_plugins_come_first_and_in_order():
    names = list(load_plugins([EXAMPLE]))
    assert names[0] == "CPU"
    assert names.index("ORT") < names.index("NULL") < names.index("DENSE")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("no_such_module:Plugin", "no_such_module"),
        ("hetero.examples.third_party_plugin:Nope", "Nope"),
        ("hetero.examples.third_party_plugin", "module:attr"),
        ("os:getcwd", "not a subclass of devices.Plugin"),
    ],
)
def test_what_cannot_be_loaded_is_a_row(spec, says):
    entries = load_plugins([spec, EXAMPLE], entry_points=False)
    assert entries["DENSE"].plugin is not None
    (broken,) = (e for e in entries.values() if e.plugin is None)
    assert says in broken.error


def raise_missing(self):
    raise PluginLoadError("the backend is missing; pip install 'it'", device="BROKEN")


def raise_anything(self):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("init", "says"), [(raise_missing, "pip install 'it'"), (raise_anything, "ZeroDivisionError")]
)
def test_a_plugin_that_does_not_start_is_a_row(init, says):
    entries = load_plugins([make("BROKEN", __init__=init), EXAMPLE], entry_points=False)
    assert says in entries["BROKEN"].error
    assert entries["DENSE"].plugin is not None
    with pytest.raises(PluginLoadError, match="BROKEN"):
        find_plugin(entries, "BROKEN.0")


@pytest.mark.parametrize("name", ["A.B", "A:B", "A B", "", "HETERO", "AUTO", "MULTI", None])
def test_names_that_cannot_be(name):
    (entry,) = load_plugins([make(name)], entry_points=False).values()
    assert entry.plugin is None
    assert "name" in entry.error


def test_a_name_that_two_claim_names_both():
    entries = load_plugins([EXAMPLE, make("DENSE")], entry_points=False)
    assert entries["DENSE"].plugin is None
    assert EXAMPLE in entries["DENSE"].error
    assert ":Made" in entries["DENSE"].error


def test_the_same_plugin_twice_is_one():
    entries = load_plugins([EXAMPLE, EXAMPLE], entry_points=False)
    assert entries["DENSE"].plugin is not None


def test_entry_points_of_two_distributions_that_clash(monkeypatch):
    class Distribution:
        def __init__(self, name):
            self.name = name

    class Point(metadata.EntryPoint):
        def for_distribution(self, name):
            vars(self)["dist"] = Distribution(name)
            return self

    points = [
        Point("DENSE", EXAMPLE, "hetero.plugins").for_distribution("first-dist"),
        Point("DENSE", "hetero.devices.null.plugin:NullPlugin", "hetero.plugins").for_distribution(
            "second-dist"
        ),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    entry = load_plugins()["DENSE"]
    assert entry.plugin is None
    assert "first-dist" in entry.error
    assert "second-dist" in entry.error


def test_unknown_device_lists_what_there_is():
    entries = load_plugins([EXAMPLE], entry_points=False)
    with pytest.raises(UnknownDeviceError, match=r"DENSE\. Did you mean DENSE\?"):
        find_plugin(entries, "DENSY.0")
    assert find_plugin(entries, "DENSE.0").name == "DENSE"

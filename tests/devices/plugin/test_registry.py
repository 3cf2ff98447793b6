"""Discovery of plugins; a plugin that fails to load becomes an entry with an error."""

import errno
from importlib import metadata

import pytest

from hetero.devices import Plugin, Program, find_plugin, load_plugins
from hetero.devices.errors import PluginLoadError, UnknownDeviceError

EXAMPLE = "hetero.examples.third_party_plugin:DensePlugin"


def make_plugin(plugin_name, **attributes):
    methods = {
        "name": plugin_name,
        "refuse": lambda self, node, model, config: None,
        "compile": lambda self, model, config: Program(),
        **attributes,
    }
    return type("Custom", (Plugin,), methods)


def test_module_and_attribute_loads_plugin():
    entry = load_plugins([EXAMPLE], entry_points=False)["DENSE"]
    assert entry.error is None
    assert entry.origin == EXAMPLE
    assert entry.plugin.name == "DENSE"


def test_too_many_open_files_raises_plugin_load_error(monkeypatch):
    def entry_points(group):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    with pytest.raises(PluginLoadError, match=r"Too many open files.*ulimit"):
        load_plugins()


def test_function_returns_several_plugins():
    def plugins():
        return [make_plugin("LEFT"), make_plugin("RIGHT", __init__=lambda self: 1 / 0)]

    entries = load_plugins([plugins], entry_points=False)
    assert list(entries) == ["LEFT", "RIGHT"]
    assert entries["LEFT"].plugin.name == "LEFT"
    assert "division by zero" in entries["RIGHT"].error
    (row,) = load_plugins([lambda: 1 / 0], entry_points=False).values()
    assert "division by zero" in row.error


def test_plugins_before_an_exception_are_loaded():
    def plugins():
        yield make_plugin("LEFT")
        raise OSError("no more")

    left, error_entry = load_plugins([plugins], entry_points=False).values()
    assert left.plugin.name == "LEFT"
    assert "no more" in error_entry.error


def test_class_loads_plugin():
    entry = load_plugins([make_plugin("MINE")], entry_points=False)["MINE"]
    assert isinstance(entry.plugin, Plugin)


def test_builtin_plugins_are_first_in_order():
    names = list(load_plugins([EXAMPLE]))
    assert names[0] == "CPU"
    assert names.index("ORT") < names.index("NULL") < names.index("DENSE")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Plugin", "no_such_module"),
        ("hetero.examples.third_party_plugin:Nope", "Nope"),
        ("hetero.examples.third_party_plugin", "module:attr"),
        ("os:getcwd", "expected a subclass of devices.Plugin"),
    ],
)
def test_unloadable_spec_gives_error_entry(spec, message):
    entries = load_plugins([spec, EXAMPLE], entry_points=False)
    assert entries["DENSE"].plugin is not None
    (broken,) = (e for e in entries.values() if e.plugin is None)
    assert message in broken.error


def raise_load_error(self):
    raise PluginLoadError("the backend is missing; pip install 'it'", device="BROKEN")


def raise_other_error(self):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("init", "message"),
    [(raise_load_error, "pip install 'it'"), (raise_other_error, "ZeroDivisionError")],
)
def test_raising_constructor_gives_error_entry(init, message):
    entries = load_plugins([make_plugin("BROKEN", __init__=init), EXAMPLE], entry_points=False)
    assert message in entries["BROKEN"].error
    assert entries["DENSE"].plugin is not None
    with pytest.raises(PluginLoadError, match="BROKEN"):
        find_plugin(entries, "BROKEN.0")


@pytest.mark.parametrize("name", ["A.B", "A:B", "A B", "", "HETERO", "AUTO", "MULTI", None])
def test_invalid_plugin_name_gives_error_entry(name):
    (entry,) = load_plugins([make_plugin(name)], entry_points=False).values()
    assert entry.plugin is None
    assert "name" in entry.error


def test_duplicate_plugin_name_gives_error_entry():
    entries = load_plugins([EXAMPLE, make_plugin("DENSE")], entry_points=False)
    assert entries["DENSE"].plugin is None
    assert EXAMPLE in entries["DENSE"].error
    assert ":Custom" in entries["DENSE"].error


def test_same_plugin_twice_loads_once():
    entries = load_plugins([EXAMPLE, EXAMPLE], entry_points=False)
    assert entries["DENSE"].plugin is not None


def test_duplicate_entry_point_gives_error_entry(monkeypatch):
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


def test_unknown_device_error_lists_plugins():
    entries = load_plugins([EXAMPLE], entry_points=False)
    with pytest.raises(UnknownDeviceError, match=r"DENSE\. Did you mean DENSE\?"):
        find_plugin(entries, "DENSY.0")
    assert find_plugin(entries, "DENSE.0").name == "DENSE"


def test_only_the_named_plugin_is_initialised():
    names = []

    def record(self):
        names.append(self.name)
        Plugin.__init__(self)

    plugins = [make_plugin(name, __init__=record) for name in ("ONE", "TWO")]
    assert list(load_plugins(plugins, only="TWO")) == ["TWO"]
    assert names == ["TWO"]
    assert list(load_plugins(plugins, only="CPU")) == ["CPU"]

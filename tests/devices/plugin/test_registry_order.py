"""Order, names and errors of plugins from entry points that the test lists."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from hetero.devices import Plugin, Program, find_plugin, load_plugins
from hetero.devices.errors import PluginLoadError, UnknownDeviceError
from hetero.devices.plugin import one_shot_event
from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.devices.plugin.registry import close_plugins


def plugin(name: str, **attributes: Any) -> type[Plugin]:
    methods = {
        "name": name,
        "refuse": lambda self, node, model, config: None,
        "compile": lambda self, model, config: Program(),  # type: ignore[abstract]
    }
    return type(
        f"{name.title()}Class" if name.isidentifier() else "Class",
        (Plugin,),
        {**methods, **attributes},
    )


class Point:
    """Entry point of a distribution."""

    def __init__(self, name: str, target: Any, distribution: str | None = "hetero") -> None:
        self.name, self.target, self.value = name, target, f"module:{name}"
        self.dist = None if distribution is None else type("Dist", (), {"name": distribution})

    def load(self) -> Any:
        if isinstance(self.target, Exception):
            raise self.target
        return self.target


@pytest.fixture
def install(monkeypatch):
    """Return a function that sets the installed entry points."""

    def set_points(*points: Point) -> None:
        monkeypatch.setattr(metadata, "entry_points", lambda group: list(points))

    return set_points


def test_own_plugins_come_first_and_in_a_fixed_order(install):
    names = ["NULL", "OV", "B", "ORT", "A", "GPU", "CPU"]
    install(Point("Z", plugin("Z"), "aaa"), *(Point(name, plugin(name)) for name in names))
    assert list(load_plugins()) == ["CPU", "ORT", "OV", "GPU", "NULL", "A", "B", "Z"]
    assert load_plugins(entry_points=False) == {}


def test_origin_names_the_distribution_and_the_object(install):
    install(Point("A", plugin("A")), Point("B", plugin("B"), None))
    entries = load_plugins()
    assert entries["A"].origin == "hetero (module:A)"
    assert entries["B"].origin == "unknown distribution (module:B)"


def test_duplicates_of_one_distribution_load_once(install):
    count: list[int] = []
    target = plugin("A", __init__=lambda self: count.append(1))
    install(Point("A", target), Point("A", target))
    assert load_plugins()["A"].error is None
    assert count == [1]


def test_entry_point_and_plugin_have_one_name(install):
    install(Point("A", plugin("B")))
    (entry,) = load_plugins().values()
    assert (entry.name, entry.plugin) == ("A", None)
    assert "expected a plugin named 'A'" in str(entry.error)


def test_broken_plugins_have_their_error_and_name(install):
    install(
        Point("A", ImportError("no library")),
        Point("B", PluginLoadError("no driver")),
        Point("C", 3),
        Point("D", OSError()),
        Point("E", plugin("E")),
    )
    entries = load_plugins()
    assert {name: entry.error for name, entry in entries.items()} == {
        "A": "ImportError: no library",
        "B": "no driver",
        "C": "expected a subclass of devices.Plugin, got 3.",
        "D": "OSError: OSError",
        "E": None,
    }
    with pytest.raises(PluginLoadError, match=r"device 'A\.1' \(from hetero.*no library") as caught:
        find_plugin(entries, "A.1")
    assert caught.value.data["device"] == "A.1"
    assert find_plugin(entries, "E").name == "E"


def test_unknown_device(install):
    with pytest.raises(UnknownDeviceError, match=r"'CPU'; the plugins are none\. Pass") as caught:
        find_plugin({}, "CPU")
    assert caught.value.data["device"] == "CPU"
    install(Point("CPU", plugin("CPU")))
    with pytest.raises(UnknownDeviceError, match=r"are CPU\. Did you mean CPU\?"):
        find_plugin(load_plugins(), "cpu.0")


def test_installed_plugin_under_another_name(install):
    def several() -> list[type[Plugin]]:
        return [plugin("LEFT"), plugin("RIGHT")]

    install(Point("A", plugin("A")), Point("BROKEN", ImportError("x")), Point("BOTH", several))
    entries = load_plugins(["MINE=A", "OTHER=RIGHT", "X=NONE", "Y=m:"], entry_points=False)
    assert [entry.plugin and entry.plugin.name for entry in entries.values()] == [
        "MINE",
        "OTHER",
        None,
        None,
    ]
    assert type(entries["MINE"].plugin).__name__ == "AClass"
    for name, target in (("X", "NONE"), ("Y", "m:")):
        assert f"got {target!r}" in str(entries[name].error)
        assert "expected the name of an installed plugin" in str(entries[name].error)


def test_plugin_of_another_interpreter_needs_ray():
    entries = load_plugins(["X=m:A@/opt/python"], entry_points=False)
    assert (entries["X"].plugin, entries["X"].origin) == (None, "X=m:A@/opt/python")
    assert "only Ray can run the interpreter /opt/python" in str(entries["X"].error)


def test_two_plugins_of_one_name_exclude_each_other(install):
    install(Point("A", plugin("A"), "one"), Point("B", plugin("B"), "one"))
    entries = load_plugins([plugin("A"), plugin("A")])
    assert entries["A"].plugin is None
    assert "two plugins have the name 'A': one from one (module:A)" in str(entries["A"].error)
    assert entries["B"].plugin is not None


def test_all_plugins_are_closed_despite_errors(install):
    closed: list[str] = []

    def fail(self: Plugin) -> None:
        closed.append(self.name)
        raise ValueError("busy")

    install(*(Point(n, plugin(n, close=fail)) for n in "AB"), Point("C", ImportError("x")))
    close_plugins(load_plugins().values())
    assert closed == ["A", "B"]


@pytest.mark.parametrize("name", ["HETERO", "AUTO", "MULTI", "A.B", "A:B", "A,B", "A B", " ", ""])
def test_names_that_device_strings_cannot_contain(name):
    (entry,) = load_plugins([plugin(name)], entry_points=False).values()
    assert entry.plugin is None
    assert entry.error


# Events.


def test_event_that_is_set():
    event = OneShotEvent()
    assert not event.is_set()
    assert not event.wait(0)
    assert not event.wait(0.001)
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait(0)
    assert event.wait()


def test_wait_without_a_limit_is_split_into_slices(monkeypatch):
    assert one_shot_event.WAIT_SLICE_S == 0.5  # a user's Ctrl-C takes at most this long
    event = OneShotEvent()
    waits: list[float] = []

    class Gate:
        """Lock that is acquired on the third attempt."""

        def acquire(self, timeout: float) -> bool:
            waits.append(timeout)
            if len(waits) == 3:
                event._is_set = True
            return len(waits) == 3

        def release(self) -> None:
            """Do nothing."""

    event._gate = Gate()
    assert event.wait()
    assert waits == [0.5] * 3

"""The table of behaviours: whole, counted right, and every test that it names is there."""

import re
from collections import Counter
from pathlib import Path

from hetero.devices.testing import device_checks, subject_checks

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
ROWS = [
    (int(number), state, re.findall(r"`([^`]+)::(\w+)`", shown), note)
    for number, state, shown, note in re.findall(
        r"^\| (\d+) \| .+? \| ([a-z ]+) \| (.+?) \| (.*?) ?\|$", TABLE, re.MULTILINE
    )
]
STATES = ("has", "bettered", "partly", "cannot apply", "missing")


def test_every_row_is_there_once():
    assert [number for number, *_ in ROWS] == list(range(1, 128))


def test_the_counts_are_those_of_the_rows():
    told = {state: int(n) for state, n in re.findall(r"^- ([a-z ]+): (\d+)$", TABLE, re.MULTILINE)}
    counted = Counter(state for _, state, *_ in ROWS)
    assert told == {state: counted[state] for state in STATES}
    assert told["missing"] == 0
    checks = (
        f"Checks of every subject: {len(subject_checks())}; of a plugin: {len(device_checks())}."
    )
    assert checks in TABLE


def test_every_row_is_shown_and_what_departs_says_why():
    for number, state, shown, note in ROWS:
        assert shown or state == "cannot apply", number
        assert note or state == "has", number


def test_every_test_that_it_names_is_there():
    for number, _, shown, _ in ROWS:
        for file, name in shown:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), f"row {number}: {name}"

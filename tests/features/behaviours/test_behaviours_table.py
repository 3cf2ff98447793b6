"""docs/behaviours.md: its rows, its counts, and the tests that it names."""

import re
from collections import Counter
from pathlib import Path

from hetero.devices.testing import device_checks, subject_checks

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
ROWS = [
    (int(number), state, re.findall(r"`([^`]+)::(\w+)`", tests), note)
    for number, state, tests, note in re.findall(
        r"^\| (\d+) \| .+? \| ([a-z ]+) \| (.+?) \| (.*?) ?\|$", TABLE, re.MULTILINE
    )
]
STATES = ("has", "bettered", "partly", "cannot apply", "missing")


def test_table_has_every_row_once():
    assert [number for number, *_ in ROWS] == list(range(1, 128))


def test_counts_equal_the_rows():
    stated_counts = {
        state: int(n) for state, n in re.findall(r"^- ([a-z ]+): (\d+)$", TABLE, re.MULTILINE)
    }
    counts = Counter(state for _, state, *_ in ROWS)
    assert stated_counts == {state: counts[state] for state in STATES}
    assert stated_counts["missing"] == 0
    checks = (
        f"Checks of every subject: {len(subject_checks())}; of a plugin: {len(device_checks())}."
    )
    assert checks in TABLE


def test_rows_have_tests_and_deviations_have_notes():
    for number, state, tests, note in ROWS:
        assert tests or state == "cannot apply", number
        assert note or state == "has", number


def test_every_named_test_exists():
    for number, _, tests, _ in ROWS:
        for file, name in tests:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {name}\(", text, re.MULTILINE), f"row {number}: {name}"

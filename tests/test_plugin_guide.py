"""The page about OpenVINO's plugin guide: the code of each row runs and is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "from-the-plugin-guide.md").read_text()
#: (guide's name, code) of each row.
ROWS = [
    (cells[0].strip(), cells[-1].strip().strip("`"))
    for line in PAGE.splitlines()
    if line.startswith("| `") or (line.startswith("| ") and line.endswith("` |"))
    for cells in [line.strip("|").split(" | ")]
]


@pytest.fixture(scope="module")
def names():
    setup = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert setup is not None
    objects: dict[str, Any] = {}
    exec(setup[1], objects)
    yield objects
    objects["core"].close()


@pytest.mark.parametrize(("guide", "code"), ROWS, ids=[guide for guide, _ in ROWS])
def test_code_of_a_row_is_true(names, guide, code):
    assert eval(code, names)


def test_page_has_all_rows():
    assert len(ROWS) == sum(line.startswith("| ") for line in PAGE.splitlines()) - 2 * 5

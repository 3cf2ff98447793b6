"""The decorator that checks every row of a table in one test."""

from __future__ import annotations

import inspect

import pytest

from tests.support.rows import for_each_row


def test_every_row_that_fails_is_reported():
    checked = []

    @for_each_row("number, word", [(1, "one"), (2, "two"), (3, "three")])
    def check(number, word, fixture):
        checked.append((number, word, fixture))
        assert number != 1
        if number == 3:
            pytest.fail("three is refused")

    assert list(inspect.signature(check).parameters) == ["fixture"]
    with pytest.raises(BaseExceptionGroup) as group:
        check(fixture="f")
    assert checked == [(1, "one", "f"), (2, "two", "f"), (3, "three", "f")]
    assert group.value.message == "2 of 3 rows fail: row 0 (1, one); row 2 (3, three)"
    assert [e.__notes__ for e in group.value.exceptions] == [["row 0: 1, one"], ["row 2: 3, three"]]


def test_rows_that_pass_raise_nothing():
    checked = []
    for_each_row("x", [(1, 2), "ab"], name_of=repr)(lambda x: checked.append(x))()
    assert checked == [(1, 2), "ab"]


def test_empty_table_fails():
    with pytest.raises(AssertionError, match="the table is empty"):
        for_each_row("x", [])(lambda x: None)()

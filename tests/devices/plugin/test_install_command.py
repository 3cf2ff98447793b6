"""Commands that install extras, by the source that pip recorded."""

from __future__ import annotations

import pytest

from hetero.devices.plugin.install_command import _requirement

FOLDER = "file:///my%20code/hetero"


@pytest.mark.parametrize(
    ("record", "extra", "expected"),
    [
        ({}, "ort", "'hetero[ort]'"),
        ({}, "", "'hetero'"),
        (
            {"url": FOLDER, "dir_info": {"editable": True}},
            "ort",
            "-e '/my code/hetero[ort]'",
        ),
        ({"url": FOLDER, "dir_info": {}}, "gpu", "'/my code/hetero[gpu]'"),
        ({"url": FOLDER, "dir_info": {}}, "", "'/my code/hetero'"),
        (
            {"url": "file:///tmp/hetero-1-py3-none-any.whl", "archive_info": {}},
            "ort",
            "'hetero[ort] @ file:///tmp/hetero-1-py3-none-any.whl'",
        ),
        (
            {"url": "https://example.org/hetero.git", "vcs_info": {"vcs": "git"}},
            "serve",
            "'hetero[serve] @ git+https://example.org/hetero.git'",
        ),
    ],
)
def test_requirement_names_the_recorded_source(record, extra, expected):
    assert _requirement(record, extra) == expected

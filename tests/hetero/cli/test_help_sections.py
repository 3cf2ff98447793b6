"""Help texts: a command's own options come first; shared options follow under headings."""

from __future__ import annotations

import re

import click
import pytest

from hetero.cli.help_sections import SECTIONS
from hetero.cli.main import cli
from hetero.cli.planning_options import PROPERTIES


@pytest.mark.parametrize("name", ["run", "bench", "serve", "generate", "plan", "query"])
def test_help_lists_own_options_before_shared_ones(shell, name):
    text = shell(f"{name} --help", ray=True).out
    headings = [heading for heading in ("Options", *SECTIONS) if f"\n{heading}:\n" in text]
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert headings[0] == "Options"
    assert headings[-1] == "Devices and cluster"
    assert text.index("--device ") < text.index("--executor") < text.index("--address")


def test_help_lists_every_option_once(shell):
    text = shell("bench --help", ray=True).out
    options = [p for p in cli.commands["bench"].params if isinstance(p, click.Option)]
    assert len(options) > 20
    for option in options:
        assert len(re.findall(rf"^  (-\w, )?{option.opts[-1]}\b(?!-)", text, re.MULTILINE)) == 1


def test_planning_options_name_their_properties_and_values_in_upper_case(shell):
    text = " ".join(shell("run --help", ray=True).out.split())
    for name in PROPERTIES.values():
        assert f"(property {name})" in text
    assert "--hint THROUGHPUT|LATENCY" in text
    assert "--policy PRIORITY|PIPELINE_PARALLEL|AUTO" in text


def test_pool_commands_accept_only_options_that_apply(shell):
    error = shell("pool up").err
    assert "No such option" in error
    assert "--executor" in error
    assert "--executor" not in shell("pool up --help", ray=True).out

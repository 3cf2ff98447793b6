"""Inputs of decode steps and batches of sequences, by their lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero.apps.generate.batch_layout import BatchLayout
from hetero.apps.generate.decoder_ports import Decoder
from hetero.apps.generate.prefill_chunks import ChunkSizer
from hetero.apps.generate.sampling import Sampling
from hetero.apps.generate.step_inputs import SequenceOptions, StepInputs
from hetero.devices.model.tensor_spec import TensorSpec
from tests.support.rows import for_each_row

CHANGES_AT = 4
DECODER = Decoder(
    "ids", "", 97, positions="positions", sampling="sampling", seen="seen", changes_at=CHANGES_AT
)
PORTS = [TensorSpec(name, "tensor(int64)", ("batch", None)) for name in ("ids", "positions")]


def sequence(length: int, **sources: np.ndarray) -> Any:
    options = SequenceOptions(Sampling(temperature=1).row(97), False, 0, 9, (), sources)
    return SimpleNamespace(
        ids=list(range(length)), options=options, random_number=lambda offset=0: 0.25 + offset / 2
    )


@for_each_row(
    "padding, lengths, fits",
    [
        ("end", (4, 4), True),
        ("end", (3, 4), True),
        ("end", (4, 5), False),  # longer than changes_at, and not
        ("end", (5, 6), True),
        ("end", (5, 256), True),
        ("end", (129, 257), True),
        ("end", (128, 257), True),
        ("end", (257, 5, 5), False),  # 771 positions for 267 tokens
        ("end", (258, 128, 6), True),  # 774 positions for 392 tokens
        ("end", (258, 123, 6), True),  # twice as many positions as tokens
        ("end", (258, 122, 6), False),
        ("none", (6, 6), True),
        ("none", (6, 7), False),
    ],
)
def test_sequences_share_a_run_by_their_lengths(padding, lengths, fits):
    layout = BatchLayout({}, padding, True, CHANGES_AT)
    assert layout.fits([sequence(length) for length in lengths]) is fits
    assert layout.fits([sequence(length) for length in reversed(lengths)]) is fits


def test_sequences_share_a_run_if_their_sources_have_equal_shapes():
    layout = BatchLayout({}, "end", True)
    first, second, longer = (sequence(3, encoded=np.zeros((1, n, 2))) for n in (5, 5, 6))
    assert layout.fits([first, second])
    assert not layout.fits([first, second, longer])
    assert not layout.fits([first, sequence(3)])


@pytest.mark.parametrize(("length", "is_early"), [(3, True), (4, False), (5, True), (6, True)])
def test_inputs_of_the_next_step_are_early_unless_caches_change(length, is_early):
    inputs = StepInputs(DECODER, PORTS, [sequence(length)], False, 0, ChunkSizer())
    feeds = inputs.feeds()
    np.testing.assert_array_equal(feeds["ids"], [range(length)])
    early = inputs.feeds_after()
    assert (early is not None) == is_early
    if early is not None:
        assert early["positions"].tolist() == [[length]]
        assert early["sampling"][0, -1] == 0.75
        assert "ids" not in early


def test_greedy_sequences_take_no_random_numbers():
    greedy = sequence(3)
    greedy.options.sampling[:] = Sampling().row(97)
    greedy.random_number = None
    inputs = StepInputs(DECODER, PORTS, [greedy], False, 0, ChunkSizer())
    inputs.feeds()
    assert inputs.feeds_after() is not None
    inputs.complete_run(0.0)
    inputs.add([1])
    assert inputs.feeds()["sampling"].tolist() == [[1, 1, 1, 0, 1, 0]]
    drawn = StepInputs(DECODER, PORTS, [sequence(3), sequence(3)], True, 0, ChunkSizer())
    assert drawn.feeds()["sampling"][:, -1].tolist() == [0.25, 0.25]

"""State on Ray: caches stay in the actors, and are gone with them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import hetero
from hetero.errors import TensorError
from tests.support.stateful_models import STATES, decoder, expected, generated

pytestmark = pytest.mark.ray


def test_a_decoder_over_two_actors_generates_the_same_tokens_and_says_what_is_lost() -> None:
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            decoder(), "HETERO:CPU.0,CPU.1", affinity={"1/*": "CPU.1"}, states=STATES
        ) as compiled,
    ):
        request = compiled.create_infer_request()
        want = expected(decoder())
        assert generated(request) == want
        kept = {s.name: s._states._values[s.name].bundle.device for s in request.query_state()}
        assert kept == {f"past.{i}.{kind}": f"CPU.{i}" for i in (0, 1) for kind in ("key", "value")}
        request.restore_s = 0.0  # what runs from now on, nothing is kept for
        request.reset_state()
        assert generated(request) == want
        executor: Any = core.executor
        os.kill(executor._ask(executor._devices.device("CPU.1"), "ping"), signal.SIGKILL)
        with pytest.raises(TensorError, match=r"'past\.1\.\w+'.*CPU\.1.*reset_state\(\)"):
            request.infer({"ids": [[1]]})
        request.reset_state()
        assert generated(request) == want

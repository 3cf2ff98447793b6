"""``hetero generate``: text or ids in, a stream out, and where each layer is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.support.command_line import Shell
from tests.support.decoders import VOCABULARY, decoder, greedy


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The decoder's file."""
    onnx.save(decoder(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_ids_go_in_and_out(shell: Shell, model: Path) -> None:
    line = f"generate {model} -d HETERO:CPU.0,CPU.1 --devices CPU=2 -a *_1=CPU.1 -n 6 --ids 3,14"
    told = shell(line)
    want = greedy([3, 14], 6)
    assert told.out.split()[:6] == [str(token) for token in want]
    assert "6 tokens (length)" in told.err
    document = shell(line, "--json").document
    assert document["tokens"] == want
    assert [(r["device"], r["layers"]) for r in document["layers"]] == [
        ("CPU.0", "0"),
        ("CPU.1", "1"),
        ("CPU.0", "head"),
    ]


@pytest.mark.parametrize("plan", ["", "-c PERFORMANCE_HINT=LATENCY"])
def test_what_is_drawn_follows_from_the_seed(shell: Shell, model: Path, plan: str) -> None:
    line = f"generate {model} --executor inprocess -d CPU {plan} --ids 3 -n 8 --temperature 50"
    first, again, other = (
        shell(f"{line} --seed {seed}", "--json").document["tokens"] for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize("below", ["", "onnx"])
def test_text_goes_in_and_streams_out(shell: Shell, model: Path, below: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{i}" for i in range(VOCABULARY - 3)]
    # A character of two tokens is given once it is whole.
    vocabulary = {w: i for i, w in enumerate([*words, "<unk>", "<0xC3>", "<0xA9>"])}
    kind = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    made = tokenizers.Tokenizer(kind)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(model.parent / "tokenizer.json"))
    tokens = greedy([3, 14], 5)
    (model.parent / "generation_config.json").write_text(f'{{"eos_token_id": {tokens[3]}}}')
    (model.parent / below).mkdir(exist_ok=True)
    path = model.rename(model.parent / below / "model.onnx")  # as models for Transformers.js are
    told = shell(f"generate {path} -d CPU -n 5", "--prompt", "w3 w14")
    want = " ".join(made.decode([token]) for token in tokens[:4])
    assert told.out.splitlines()[0] == want


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("", 2, "--prompt TEXT or --ids"),
        ("--ids 1,x", 2, "numbers"),
        ("--ids 99", 1, "vocabulary"),
        ("--prompt word", 1, "tokenizer"),
        ("--ids 1 --temperature -1", 1, "temperature"),
    ],
)
def test_bad_input_is_said(shell: Shell, model: Path, line: str, code: int, text: str) -> None:
    told = shell(f"generate {model} -d CPU {line}")
    assert told.code == code
    assert text in told.err

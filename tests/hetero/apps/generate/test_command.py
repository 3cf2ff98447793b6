"""``hetero generate``: prompts as text or ids, streamed output, devices of layers, errors."""

from __future__ import annotations

import onnx
import pytest

from tests.support.decoders import VOCABULARY, decoder, greedy


@pytest.fixture
def model(tmp_path):
    """The file of a decoder."""
    onnx.save(decoder(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_prompt_ids_give_token_ids(shell, model):
    line = f"generate {model} -d HETERO:CPU.0,CPU.1 --devices CPU=2 -a *_1=CPU.1 -n 6 --ids 3,14"
    result = shell(line)
    expected = greedy([3, 14], 6)
    assert result.out.split()[:6] == [str(token) for token in expected]
    assert "6 tokens (length)" in result.err
    document = shell(line, "--json").document
    assert document["tokens"] == expected
    assert [(r["device"], r["layers"]) for r in document["layers"]] == [
        ("CPU.0", "0"),
        ("CPU.1", "1"),
        ("CPU.0", "head"),
    ]


@pytest.mark.parametrize("plan", ["", "-c PERFORMANCE_HINT=LATENCY"])
def test_seed_determines_sampled_tokens(shell, model, plan):
    line = f"generate {model} --executor inprocess -d CPU {plan} --ids 3 -n 8 --temperature 50"
    first, repeated, other = (
        shell(f"{line} --seed {seed}", "--json").document["tokens"] for seed in (1, 1, 2)
    )
    assert first == repeated != other


@pytest.mark.parametrize("subfolder", ["", "onnx"])
def test_prompt_text_gives_streamed_text(shell, model, subfolder):
    tokenizers = pytest.importorskip("tokenizers")
    words = [f"w{i}" for i in range(VOCABULARY - 3)]
    # The two tokens of one character are printed together.
    vocabulary = {w: i for i, w in enumerate([*words, "<unk>", "<0xC3>", "<0xA9>"])}
    word_model = tokenizers.models.WordLevel(vocabulary, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(word_model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(model.parent / "tokenizer.json"))
    tokens = greedy([3, 14], 5)
    (model.parent / "generation_config.json").write_text(f'{{"eos_token_id": {tokens[3]}}}')
    (model.parent / subfolder).mkdir(exist_ok=True)
    # Models for Transformers.js are in a subfolder.
    path = model.rename(model.parent / subfolder / "model.onnx")
    result = shell(f"generate {path} -d CPU -n 5", "--prompt", "w3 w14")
    expected = " ".join(tokenizer.decode([token]) for token in tokens[:4])
    assert result.out.splitlines()[0] == expected


def test_folder_stands_for_the_decoder_in_it(shell, model):
    line = f"generate {model.parent} -d CPU -n 3 --ids 3,14 --json"
    document = shell(line).document
    assert document["tokens"] == greedy([3, 14], 3)
    assert document["loaded_from_cache"] is False
    model.rename(model.parent / "other.onnx")
    result = shell(f"generate {model.parent} -d CPU --prompt hello")
    assert result.code == 1
    assert f"{model.parent} is a folder without model.onnx" in result.err


def test_subgraphs_without_weights_are_not_listed(shell, model):
    line = f"generate {model} -d HETERO:CPU.0,CPU.1 --devices CPU=2 -a sample=CPU.1 -n 1 --ids 3"
    assert " 0 B" not in shell(line).out
    assert [r["weights_nbytes"] > 0 for r in shell(line, "--json").document["layers"]] == [
        True,
        False,
    ]


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
def test_bad_input_is_reported(shell, model, line, code, text):
    result = shell(f"generate {model} -d CPU {line}")
    assert result.code == code
    assert text in result.err


def test_decoder_that_fits_gives_equal_tokens(shell, model):
    line = f"generate {model} --devices CPU=2 -d HETERO:CPU.0,CPU.1 -n 6 --ids 3,14 --json --fit"
    result = shell(f"{line} --memory CPU.0=1GB,CPU.1=1GB")
    assert result.document["tokens"] == greedy([3, 14], 6)
    assert {row["device"] for row in result.document["layers"]} == {"CPU.0"}
    assert "does not fit" in shell(f"{line} --memory CPU.0=1MB,CPU.1=1MB").out


def test_model_that_is_no_decoder_is_named_before_its_tokenizer(shell):
    result = shell("generate light:squeezenet --executor inprocess -d CPU --prompt hello")
    assert result.code == 1
    assert "expected a decoder with an input of token ids" in result.err
    assert "'data_0'" in result.err
    assert "hetero run" in result.err

"""Text as it comes: by real tokenizers of each kind, its pieces are the text of all tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetero.apps.generate.tokenizer import Detokenizer, Tokenizer

tokenizers = pytest.importorskip("tokenizers")
decoders = pytest.importorskip("tokenizers.decoders")
trainers = pytest.importorskip("tokenizers.trainers")

TEXTS = [
    "The quick brown fox jumps over the lazy dog, and it doesn't stop .",
    "Na\u00efve caf\u00e9s:  two  spaces,\n\nnew lines\tand tabs!",
    "\u4f60\u597d\uff0c\u4e16\u754c \U0001f468\u200d\U0001f469 d\u00e9j\u00e0 \U0001f600",
    "def f(x):\n    return x + 1  # 3.14",
]
SPECIAL = ["<s>", "</s>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _trained(model: Any, trainer: Any, **parts: Any) -> Any:
    made = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    trainer.show_progress = False
    made.train_from_iterator(TEXTS, trainer)
    return made


def _byte_level() -> Any:
    """As GPT-2's, Llama 3's and Qwen's: tokens are bytes."""
    level = tokenizers.pre_tokenizers.ByteLevel
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=level.alphabet()
    )
    return _trained(
        tokenizers.models.BPE(),
        trainer,
        pre_tokenizer=level(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )


def _spelt(*strip: Any) -> Any:
    """As SentencePiece's BPE: a space is part of a token, what has no token is spelt in bytes."""
    rules = tokenizers.normalizers
    made = _trained(
        tokenizers.models.BPE(unk_token="<unk>"),
        trainers.BpeTrainer(vocab_size=100, special_tokens=SPECIAL, limit_alphabet=30),
        normalizer=rules.Sequence([rules.Prepend("\u2581"), rules.Replace(" ", "\u2581")]),
        decoder=decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        ),
    )
    document = json.loads(made.to_str())
    words = document["model"]["vocab"]
    words |= {byte: len(words) + i for i, byte in enumerate(BYTES)}
    document["model"]["byte_fallback"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _metaspace() -> Any:
    """As T5's: the space of the first token is none."""
    return _trained(
        tokenizers.models.Unigram(),
        trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>"),
        pre_tokenizer=tokenizers.pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )


def _word_piece() -> Any:
    """As BERT's: a token that goes on with a word says so."""
    return _trained(
        tokenizers.models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer(vocab_size=110, special_tokens=SPECIAL),
        pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )


def _by_ends() -> Any:
    """As GPT-1's: a token that ends a word says so."""
    return _trained(
        tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, end_of_word_suffix="</w>"),
        pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.BPEDecoder(),
    )


KINDS: dict[str, Callable[[], Any]] = {
    "bytes": _byte_level,
    "llama 2": lambda: _spelt(decoders.Strip(" ", 1, 0)),
    "gemma": _spelt,
    "metaspace": _metaspace,
    "word pieces": _word_piece,
    "ends of words": _by_ends,
}


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    KINDS[request.param]().save(str(path))
    return Tokenizer(path)


def pieces(tokenizer: Tokenizer, ids: list[int], after: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, after)
    return [*(stream.add(token) for token in ids), stream.end()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    special = [i for token in SPECIAL for i in tokenizer.encode(token)[-1:]]
    ids = [token for i in ids for token in (i, *random.Random(i).sample(special, 1))]
    whole = tokenizer.decode(ids)
    told = pieces(tokenizer, ids, [])
    assert "".join(told) == whole
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(told)
    assert sum(map(bool, told)) > len(ids) / 8  # it comes bit by bit
    for at in range(1, len(ids)):
        before = tokenizer.decode(ids[:at])
        if not before.endswith("\N{REPLACEMENT CHARACTER}"):
            assert before + "".join(pieces(tokenizer, ids[at:], ids[:at])) == whole


def test_any_tokens_have_their_text(tokenizer: Tokenizer) -> None:
    inner = tokenizer._tokenizer
    ids = {*range(inner.get_vocab_size() + 3)} - {inner.token_to_id(byte) for byte in BYTES}
    for seed in range(20):
        told = random.Random(seed).choices(sorted(ids), k=80)
        assert "".join(pieces(tokenizer, told, [])) == tokenizer.decode(told)


def test_bytes_that_make_no_character_take_nothing_back(tmp_path: Path) -> None:
    made = _spelt()
    made.save(str(tmp_path / "tokenizer.json"))
    letter, broken, word = map(made.token_to_id, ("<0x53>", "<0xFF>", "\u2581"))
    told = pieces(Tokenizer(tmp_path), [letter, broken, word], [])
    assert told == ["S", "", "\ufffd ", ""]


@pytest.mark.parametrize("kind", ["text", "special", "broken"])
def test_a_token_costs_the_same_however_long_the_text_is(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _byte_level()
    made.save(str(tmp_path / "tokenizer.json"))
    ids = {
        "text": made.encode("Na\u00efve \u4f60 " * 300).ids,
        "special": [1] * 1000,
        "broken": [made.token_to_id("\u00a1")] * 1000,  # a byte that begins no character
    }[kind]
    tokenizer, counts = Tokenizer(tmp_path), []
    decode = tokenizer.decode

    def counted(given: list[int]) -> str:
        counts.append(len(given))
        return decode(given)

    monkeypatch.setattr(tokenizer, "decode", counted)
    assert "".join(pieces(tokenizer, ids, [])) == decode(ids)
    assert max(counts) <= (8 if kind == "text" else 128)
    assert len(counts) <= 2 * len(ids) + 3

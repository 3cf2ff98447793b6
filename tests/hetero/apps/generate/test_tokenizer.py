"""Streamed text: the pieces of real tokenizers of each kind join to the text of all tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from hetero.apps.generate.tokenizer import Detokenizer, Tokenizer
from tests.support.rows import for_each_row

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


def _train(model: Any, trainer: Any, **parts: Any) -> Any:
    tokenizer = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    trainer.show_progress = False
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _byte_level() -> Any:
    """Build a byte-level tokenizer, as of GPT-2, Llama 3 and Qwen."""
    level = tokenizers.pre_tokenizers.ByteLevel
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=level.alphabet()
    )
    return _train(
        tokenizers.models.BPE(),
        trainer,
        pre_tokenizer=level(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
    )


def _with_byte_fallback(*strip: Any) -> Any:
    """Build a SentencePiece BPE tokenizer: tokens include spaces, rare characters are bytes."""
    rules = tokenizers.normalizers
    tokenizer = _train(
        tokenizers.models.BPE(unk_token="<unk>"),
        trainers.BpeTrainer(vocab_size=100, special_tokens=SPECIAL, limit_alphabet=30),
        normalizer=rules.Sequence([rules.Prepend("\u2581"), rules.Replace(" ", "\u2581")]),
        decoder=decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        ),
    )
    document = json.loads(tokenizer.to_str())
    words = document["model"]["vocab"]
    words |= {byte: len(words) + i for i, byte in enumerate(BYTES)}
    document["model"]["byte_fallback"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _metaspace() -> Any:
    """Build a tokenizer as of T5, which drops the space of the first token."""
    return _train(
        tokenizers.models.Unigram(),
        trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="<unk>"),
        pre_tokenizer=tokenizers.pre_tokenizers.Metaspace(),
        decoder=decoders.Metaspace(),
    )


def _word_piece() -> Any:
    """Build a tokenizer as of BERT, which marks tokens that continue a word."""
    return _train(
        tokenizers.models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer(vocab_size=110, special_tokens=SPECIAL),
        pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )


def _with_word_ends() -> Any:
    """Build a tokenizer as of GPT-1, which marks tokens that end a word."""
    return _train(
        tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, end_of_word_suffix="</w>"),
        pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.BPEDecoder(),
    )


KINDS: dict[str, Callable[[], Any]] = {
    "bytes": _byte_level,
    "llama 2": lambda: _with_byte_fallback(decoders.Strip(" ", 1, 0)),
    "gemma": _with_byte_fallback,
    "metaspace": _metaspace,
    "word pieces": _word_piece,
    "ends of words": _with_word_ends,
}


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    KINDS[request.param]().save(str(path))
    return Tokenizer(path)


def pieces(tokenizer: Tokenizer, ids: list[int], after: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, after)
    return [*(stream.add(token) for token in ids), stream.end()]


@for_each_row("text", TEXTS)
def test_pieces_join_to_the_text(tokenizer, text):
    ids = tokenizer.encode(text)
    special = [i for token in SPECIAL for i in tokenizer.encode(token)[-1:]]
    ids = [token for i in ids for token in (i, *random.Random(i).sample(special, 1))]
    whole = tokenizer.decode(ids)
    text_pieces = pieces(tokenizer, ids, [])
    assert "".join(text_pieces) == whole
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(text_pieces)
    assert sum(map(bool, text_pieces)) > len(ids) / 8  # most tokens yield a piece at once
    for index in range(1, len(ids)):
        prefix = tokenizer.decode(ids[:index])
        if not prefix.endswith("\N{REPLACEMENT CHARACTER}"):
            assert prefix + "".join(pieces(tokenizer, ids[index:], ids[:index])) == whole


def test_pieces_of_random_tokens_join_to_the_text(tokenizer):
    inner = tokenizer._tokenizer
    ids = {*range(inner.get_vocab_size() + 3)} - {inner.token_to_id(byte) for byte in BYTES}
    for seed in range(20):
        tokens = random.Random(seed).choices(sorted(ids), k=80)
        assert "".join(pieces(tokenizer, tokens, [])) == tokenizer.decode(tokens)


def test_invalid_bytes_do_not_retract_text(tmp_path):
    tokenizer = _with_byte_fallback()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    letter, invalid, word = map(tokenizer.token_to_id, ("<0x53>", "<0xFF>", "\u2581"))
    text_pieces = pieces(Tokenizer(tmp_path), [letter, invalid, word], [])
    assert text_pieces == ["S", "", "\ufffd ", ""]


@pytest.mark.parametrize("kind", ["text", "special", "broken"])
def test_decoding_cost_per_token_is_constant(kind, tmp_path, monkeypatch):
    backend = _byte_level()
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = {
        "text": backend.encode("Na\u00efve \u4f60 " * 300).ids,
        "special": [1] * 1000,
        "broken": [backend.token_to_id("\u00a1")] * 1000,  # a byte that starts no character
    }[kind]
    tokenizer, counts = Tokenizer(tmp_path), []
    decode = tokenizer.decode

    def record_count(tokens: list[int]) -> str:
        counts.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(tokenizer, "decode", record_count)
    assert "".join(pieces(tokenizer, ids, [])) == decode(ids)
    assert max(counts) <= (8 if kind == "text" else 128)
    assert len(counts) <= 2 * len(ids) + 3

"""Tokenizer: text to token ids and back, with the ``tokenizer.json`` of published models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hetero.devices.errors import ArgumentError
from hetero.devices.file_reader import FileReader
from hetero.devices.plugin.install_command import install_command

_READER: Final = FileReader(
    "tokenizer",
    ArgumentError,
    "Pass the folder of a tokenizer.json, or token ids.",
    max_nbytes=2**28,
)
#: Maximum tokens that wait for the rest of a character; more do not form one.
_MAX_PENDING: Final = 64


class Tokenizer:
    """A tokenizer of the ``tokenizers`` package, from ``tokenizer.json`` or its folder.

    Raises ArgumentError: the package is not installed; the file does not exist or is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ArgumentError(
                f"text needs the package tokenizers: {install_command('generate')}, or pass "
                "token ids."
            ) from error
        path = Path(folder)
        path = path / "tokenizer.json" if path.is_dir() else path
        data = _READER.read_bytes(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises bare exceptions
            raise _READER.problem(path, f"not a tokenizer: {error}") from error

    def encode(self, text: str, *, has_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text; special tokens are added unless the text has them."""
        return list(self._tokenizer.encode(text, add_special_tokens=not has_special_tokens).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(ids))


class Detokenizer:
    """Incremental detokenizer: turns a stream of tokens into pieces of text.

    Each token is decoded together with those of the previous piece, which determine whether it
    begins with a space. The cost of a token does not depend on the length of the text.

    `after`: tokens that precede the text.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        #: Tokens of the previous piece, then tokens that are not returned yet.
        self._tokens = list(after[-_MAX_PENDING:])
        self._previous_text = tokenizer.decode(self._tokens)
        self._num_previous = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token adds; empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        is_complete = not text.endswith("\N{REPLACEMENT CHARACTER}")
        if not is_complete and len(self._tokens) - self._num_previous < _MAX_PENDING:
            return ""
        return self._take_new_text(text)

    def end(self) -> str:
        """Return the text of remaining tokens, which may end with an incomplete character."""
        return self._take_new_text(self._tokenizer.decode(self._tokens))

    def _take_new_text(self, text: str) -> str:
        """Return the text after the previous piece, and make it the previous piece."""
        new = self._tokens[self._num_previous :]
        if text == self._previous_text and len(new) < _MAX_PENDING:
            if text:  # tokens before any text may still become a space
                self._tokens = self._tokens[: self._num_previous]
            return ""
        # Invalid bytes may change the text of earlier tokens.
        extends = text.startswith(self._previous_text)
        piece = text.removeprefix(self._previous_text) if extends else self._tokenizer.decode(new)
        self._tokens, self._previous_text = new, self._tokenizer.decode(new)
        self._num_previous = len(new)
        return piece

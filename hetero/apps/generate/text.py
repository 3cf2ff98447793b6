"""From text to ids and back, by a ``tokenizer.json`` as models are published with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hetero.devices.errors import ArgumentError

#: Tokens that may wait for the rest of a character; of more it is none.
_MOST_HELD: Final = 64


class Tokenizer:
    """A tokenizer of the ``tokenizers`` package: ``tokenizer.json``, or the folder where it is.

    Raises ArgumentError: the package is not installed, or there is no such file, or it is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ArgumentError(
                "text needs the package tokenizers: pip install 'hetero[generate]'; or give ids."
            ) from error
        path = Path(folder)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise ArgumentError(
                f"{path}: does not exist; name the folder of a tokenizer.json, or give ids."
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package has no class of its own for it
            raise ArgumentError(f"{path}: not a tokenizer: {error}.") from error

    def encode(self, text: str, *, is_whole: bool = False) -> list[int]:
        """Return a text's ids, with what the tokenizer puts around it unless that is in it."""
        return list(self._tokenizer.encode(text, add_special_tokens=not is_whole).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._tokenizer.decode(ids))


class TextStream:
    """Turns tokens that come one by one into pieces of text, which together are the text of all.

    A token is decoded behind those of the piece before it, which settle whether it begins with a
    space: so it costs the same however long the text is.

    `after`: tokens that the text follows, which are not given again.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        #: The tokens of the piece before, its text, and then those that are not given yet.
        self._tokens = list(after[-_MOST_HELD:])
        self._given = tokenizer.decode(self._tokens)
        self._num_given = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that a token adds; empty while a character is not whole."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        is_whole = not text.endswith("\N{REPLACEMENT CHARACTER}")
        if not is_whole and len(self._tokens) - self._num_given < _MOST_HELD:
            return ""
        return self._added(text)

    def end(self) -> str:
        """Return what there is of a character that did not become whole."""
        return self._added(self._tokenizer.decode(self._tokens))

    def _added(self, text: str) -> str:
        """Return what the text of all tokens here adds to what was given of them."""
        new = self._tokens[self._num_given :]
        if text == self._given and len(new) < _MOST_HELD:
            if text:  # where there is none yet, a space may come of them
                self._tokens = self._tokens[: self._num_given]
            return ""
        # Bytes that make no character may undo those before them.
        is_more = text.startswith(self._given)
        added = text.removeprefix(self._given) if is_more else self._tokenizer.decode(new)
        self._tokens, self._given = new, self._tokenizer.decode(new)
        self._num_given = len(new)
        return added

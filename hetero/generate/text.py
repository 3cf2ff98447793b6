"""From text to ids and back, by a ``tokenizer.json`` as models are published with."""

from __future__ import annotations

from pathlib import Path

from devices.errors import ArgumentError


class Tokenizer:
    """A tokenizer of the ``tokenizers`` package.

    Parameters
    ----------
    folder : path
        Where ``tokenizer.json`` is, or that file.

    Raises
    ------
    ArgumentError
        The package is not installed, or there is no such file, or it is damaged.
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
    """Turns tokens that come one by one into pieces of text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        #: Tokens whose text is not all given yet; the first few are there for their spaces.
        self._tokens: list[int] = []
        self._given = ""

    def add(self, token: int) -> str:
        """Return the text that a token adds; empty while a character is not whole."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        added = text.removeprefix(self._given)
        self._given = text
        if text.endswith("\n"):  # nothing before it changes what follows
            self._tokens, self._given = [], ""
        return added

"""Texts as token ids and back, by the ``tokenizer.json`` beside a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devices.errors import ArgumentError
from hetero.generate.text import Tokenizer
from hetero.serve.errors import refused


class Texts:
    """A model's tokenizer, and its template for chats.

    `folder`: where ``tokenizer.json`` and ``tokenizer_config.json`` may be; None: there is no such.
    """

    def __init__(self, folder: Path | None) -> None:
        self._template: str | None = None
        self._special: dict[str, Any] = {}
        self._tokenizer: Tokenizer | None = None
        self._missing = "there is no tokenizer.json beside the model"
        if folder is None or not (folder / "tokenizer.json").is_file():
            return
        try:
            self._tokenizer = Tokenizer(folder)
        except ArgumentError as error:  # it is said once a text is to be read
            self._missing = f"{error}"
        configuration = folder / "tokenizer_config.json"
        if configuration.is_file():
            try:
                told = json.loads(configuration.read_bytes())
            except ValueError as error:
                raise ArgumentError(f"{configuration} is not JSON: {error}") from error
            self._template = told.get("chat_template")
            for name in ("bos_token", "eos_token"):
                value = told.get(name)
                self._special[name] = value["content"] if isinstance(value, dict) else value

    def ids(self, text: str) -> list[int]:
        """Return a text's token ids.

        Raises ProtocolError: there is no tokenizer.
        """
        if self._tokenizer is None:
            raise refused(f"{self._missing}. Give the prompt as a list of token ids.", 501)
        return self._tokenizer.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids; empty where there is no tokenizer."""
        return self._tokenizer.decode(list(ids)) if self._tokenizer else ""

    def prompt(self, messages: Sequence[Any]) -> str:
        """Return the prompt that a chat's messages are to the model.

        Raises ProtocolError: the model has no template for chats, or it refuses the messages.
        """
        if not self._template:
            raise refused(
                "chats need a chat_template in tokenizer_config.json beside the model; "
                "/v1/completions takes prompts.",
                501,
            )
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise refused("chats need `pip install jinja2`.", 501) from error
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        try:
            template = environment.from_string(self._template)
            return template.render(messages=messages, add_generation_prompt=True, **self._special)
        except TemplateError as error:
            raise refused(f"the model's chat template: {error}.") from error

"""Texts as token ids and back, by the ``tokenizer.json`` beside a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NoReturn

from hetero.apps.generate.text import TextStream, Tokenizer
from hetero.apps.serve.errors import protocol_error
from hetero.devices.errors import ArgumentError

#: Tokens that templates write, by their names in a configuration.
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class Texts:
    """A model's tokenizer, and its template for chats, where its folder has them."""

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
        alone = folder / "chat_template.jinja"  # where transformers keeps it since 4.43
        try:
            told = json.loads(configuration.read_bytes()) if configuration.is_file() else {}
            self._template = alone.read_text() if alone.is_file() else told.get("chat_template")
            if isinstance(self._template, list):  # of several, by name
                named = {one["name"]: one["template"] for one in self._template}
                self._template = named.get("default")
            for name in _SPECIAL:
                if value := told.get(name):
                    self._special[name] = value["content"] if isinstance(value, dict) else value
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"{configuration} or {alone.name} beside it is damaged: {error!r}. Take them from "
                "where the model was published."
            ) from error

    def ids(self, text: str, *, is_whole: bool = False) -> list[int]:
        """Return a text's token ids; one that is whole has its special tokens in it."""
        if self._tokenizer is None:
            raise protocol_error(f"{self._missing}. Give the prompt as a list of token ids.", 501)
        return self._tokenizer.encode(text, is_whole=is_whole)

    def stream(self, after: Sequence[int] = ()) -> TextStream | None:
        """Return what makes text of tokens that follow others; None where no tokenizer is."""
        return TextStream(self._tokenizer, after) if self._tokenizer else None

    def chat_ids(self, messages: Sequence[Any], more: Mapping[str, Any]) -> list[int]:
        """Return the ids that a chat's messages are to the model; `more` is told the template."""
        template = self._compiled
        from jinja2 import TemplateError  # here, as it is installed then

        told = [_plain(message) for message in messages]
        try:
            given = {"messages": told, "add_generation_prompt": True, **self._special, **more}
            text = template.render(given)
        except (TemplateError, TypeError) as error:
            raise protocol_error(f"the model's chat template: {error}.") from error
        return self.ids(text, is_whole=True)

    @cached_property
    def _compiled(self) -> Any:
        """The template, compiled once."""
        if not self._template:
            raise protocol_error(
                "chats need a chat_template in tokenizer_config.json, or chat_template.jinja, "
                "beside the model; /v1/completions takes prompts.",
                501,
            )
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise protocol_error("chats need `pip install jinja2`.", 501) from error

        def raise_exception(message: str) -> NoReturn:
            raise TemplateError(message)

        # What templates may use, as transformers' `apply_chat_template` offers it.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals |= {"raise_exception": raise_exception, "strftime_now": _now}
        try:
            return environment.from_string(self._template)
        except TemplateError as error:
            raise protocol_error(f"the model's chat template: {error}.", 501) from error


def _plain(message: Any) -> Any:
    """Return a chat's message with its parts, if they are texts, as one text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise protocol_error("messages is a list of {role, content}.")
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    if not all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in parts):
        raise protocol_error("the content of a message is a text, or a list of {type: text, text}.")
    return {**message, "content": "".join(part["text"] for part in parts)}


def _now(form: str) -> str:
    return datetime.now().strftime(form)

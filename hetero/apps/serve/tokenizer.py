"""Prompts and chats as token ids, by the tokenizer and the chat template in a model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hetero.apps.serve.errors import protocol_error
from hetero.devices.errors import ArgumentError
from hetero.devices.file_reader import FileReader

if TYPE_CHECKING:
    from hetero.apps.generate.tokenizer import Detokenizer, Tokenizer

_READER: Final = FileReader(
    "tokenizer file", ArgumentError, "Download it again from the model's publisher."
)

#: Tokens that templates write, by their names in ``tokenizer_config.json``.
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


class PromptTokenizer:
    """The tokenizer and the chat template of a model, if its folder has them."""

    def __init__(self, folder: Path | None) -> None:
        self._template: str | None = None
        self._special_tokens: dict[str, Any] = {}
        self._tokenizer: Tokenizer | None = None
        self._problem = "the model's folder has no tokenizer.json"
        if folder is None or not (folder / "tokenizer.json").is_file():
            return
        from hetero.apps.generate.tokenizer import Tokenizer  # only models that generate text

        try:
            self._tokenizer = Tokenizer(folder)
        except ArgumentError as error:  # raised when a text is encoded
            self._problem = f"{error}"
        path = folder / "tokenizer_config.json"
        template_path = folder / "chat_template.jinja"  # since transformers 4.43
        try:
            config = _READER.read_json(path) if path.exists() else {}
            has_own = template_path.exists()
            template = _READER.read_text(template_path) if has_own else config.get("chat_template")
            if isinstance(template, list):  # several templates by name
                template = {one["name"]: one["template"] for one in template}.get("default")
            self._template = template
            for name in _SPECIAL_TOKENS:
                if token := config.get(name):
                    text = token["content"] if isinstance(token, dict) else token
                    self._special_tokens[name] = text
        except (AttributeError, LookupError, TypeError) as error:
            raise _READER.problem(path, f"it is damaged: {error!r}") from error

    def encode(self, text: str, *, has_special_tokens: bool = False) -> list[int]:
        """Return a text's token ids, with special tokens added if it has none."""
        if self._tokenizer is None:
            raise protocol_error(f"{self._problem}. Send the prompt as a list of token ids.", 501)
        return self._tokenizer.encode(text, has_special_tokens=has_special_tokens)

    def stream(self, after: Sequence[int] = ()) -> Detokenizer | None:
        """Return the text of tokens that follow others; None if there is no tokenizer."""
        if self._tokenizer is None:
            return None
        from hetero.apps.generate.tokenizer import Detokenizer

        return Detokenizer(self._tokenizer, after)

    def encode_chat(self, messages: Sequence[Any], variables: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a chat; `variables` are more variables of the template."""
        template = self._compiled_template
        from jinja2 import TemplateError

        plain = [_plain_message(message) for message in messages]
        values = {"messages": plain, "add_generation_prompt": True}
        try:
            text = template.render({**values, **self._special_tokens, **variables})
        except (TemplateError, TypeError) as error:
            raise protocol_error(f"the model's chat template: {error}.") from error
        return self.encode(text, has_special_tokens=True)

    @cached_property
    def _compiled_template(self) -> Any:
        """The chat template, compiled once."""
        if not self._template:
            raise protocol_error(
                "chats need a chat_template in tokenizer_config.json, or chat_template.jinja, in "
                "the model's folder; /v1/completions takes prompts.",
                501,
            )
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise protocol_error("chats need jinja2: pip install jinja2.", 501) from error

        def raise_exception(message: str) -> NoReturn:
            raise TemplateError(message)

        # The environment of transformers' `apply_chat_template`.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals |= {"raise_exception": raise_exception, "strftime_now": _format_now}
        try:
            return environment.from_string(self._template)
        except TemplateError as error:
            raise protocol_error(f"the model's chat template: {error}.", 501) from error


def _plain_message(message: Any) -> Any:
    """Return a message of a chat with its text parts joined."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise protocol_error("expected messages: a list of {role, content}.")
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise protocol_error(
            "the content of a message: expected a text, or a list of {type: text, text}."
        )
    return {**message, "content": "".join(part["text"] for part in parts)}


def _format_now(form: str) -> str:
    return datetime.now().strftime(form)

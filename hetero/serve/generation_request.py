"""What a request for generated text asks for, in OpenAI's form or Triton's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hetero.serve.errors import refused

#: Fields that change nothing here.
_IGNORED: Final = frozenset({"user", "metadata", "store", "model", "service_tier"})
#: Field -> the only values that are served.
_ONLY: Final[dict[str, tuple[Any, ...]]] = {
    "n": (None, 1), "best_of": (None, 1), "logprobs": (None, False), "echo": (None, False),
    "suffix": (None, ""), "logit_bias": (None, {}), "tools": (None, []),
    "presence_penalty": (None, 0, 0.0), "frequency_penalty": (None, 0, 0.0),
}  # fmt: skip
_OPTIONS: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for generated text.

    `prompt`: a text, token ids, or a chat's messages.
    `options`: more of `hetero.CompiledModel.generate`'s.
    `stop`: texts before which the answer ends.
    """

    prompt: str | list[Any]
    max_tokens: int
    stream: bool = False
    with_usage: bool = False
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def read_generation(
    document: Mapping[str, Any], prompt_name: str, *, temperature: float, max_tokens: int
) -> GenerationRequest:
    """Return what a request asks for.

    `prompt_name`: the field of the prompt.
    `temperature`, `max_tokens`: where the request says nothing.

    Raises
    ------
    ProtocolError
        A field is of another type, or not offered here.
    """
    known = {prompt_name, "stream", "stream_options", "stop", "max_tokens", *_OPTIONS}
    known |= {"max_completion_tokens", *_IGNORED, *_ONLY}
    if unknown := sorted(document.keys() - known):
        raise refused(f"{', '.join(unknown)}: not offered here.")
    for name, values in _ONLY.items():
        if (value := document.get(name)) not in values:
            raise refused(f"{name}={value!r}: not offered here; leave it out.")
    prompt = document.get(prompt_name)
    if not isinstance(prompt, str | list) or not prompt:
        raise refused(f"{prompt_name} is {type(prompt).__name__}; wanted a text or a list.")
    most = document.get("max_tokens") or document.get("max_completion_tokens") or max_tokens
    if type(most) is not int or most < 1:
        raise refused(f"max_tokens is {most!r}; wanted a whole number of tokens, 1 or more.")
    stop = document.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise refused("stop is a text, or a list of texts.")
    options = {name: document[name] for name in _OPTIONS if document.get(name) is not None}
    options.setdefault("temperature", temperature)
    usage = (document.get("stream_options") or {}).get("include_usage") is True
    stream = document.get("stream") is True
    return GenerationRequest(prompt, most, stream, usage, tuple(stop), options)

"""Generated text over HTTP, in OpenAI's and Triton's forms, by a decoder on two devices."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import onnx
import pytest

import hetero
from hetero.apps.generate.generation import BatchGeneration
from hetero.apps.serve import generation
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.repository import ModelSource, Repository
from hetero.apps.serve.server import Server
from hetero.apps.serve.tokenizer import PromptTokenizer
from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, DeviceLostError
from tests.support.decoders import VOCABULARY, decoder, decoder_with_places_by, greedy
from tests.support.serving import Response, ask, connected, posted

pytest.importorskip("uvicorn")

PROMPT = [3, 14, 15, 9, 2, 6]
USAGE = {"include_usage": True}
#: The end token of one of the models.
END = greedy(PROMPT, 6)[3]
#: The maximum number of tokens of that model.
ENDS_AT = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, other = tmp_path_factory.mktemp("decoder"), tmp_path_factory.mktemp("ending")
    _write_tokenizer(folder)
    _write_tokenizer(other)
    configuration = json.loads((other / "tokenizer_config.json").read_text())
    (other / "chat_template.jinja").write_text(configuration.pop("chat_template"))
    (other / "tokenizer_config.json").write_text(json.dumps(configuration))
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        # The number of positions of this model is undeclared.
        model = hetero.read_decoder(decoder_with_places_by("Abs"))
        compiled = core.compile_model(
            model, "HETERO:CPU.0,CPU.1", affinity={"*_1": "CPU.1", "sample": "CPU.1"}
        )
        source = ModelSource("little", "1", lambda: compiled, folder=folder)
        onnx.save(decoder(), other / "model.onnx")
        (other / "config.json").write_text(f'{{"max_position_embeddings": {ENDS_AT}}}')
        ends = core.compile_model(hetero.read_decoder(other / "model.onnx", eos=[END]), "CPU.0")
        ending = ModelSource("ending", "1", lambda: ends, folder=other)
        repository = Repository(lambda: [source, ending])
        repository.refresh()
        with Server(repository, ServerOptions(port=0)) as server:
            yield server


def _write_tokenizer(folder: Path) -> None:
    """Write a chat template and a tokenizer of words w0, w1, ... that inserts w0 before a text."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {  # it inserts w0 before a text
            "type": "TemplateProcessing",
            "pair": [],
            "single": [
                {"SpecialToken": {"id": "w0", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "special_tokens": {"w0": {"id": "w0", "ids": [0], "tokens": ["w0"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    template = (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'none' %}{{ raise_exception('no such role') }}{% endif %}"
        "{{ message['content'] }} {% endfor %}{{ after }}"
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": None, "chat_template": template})
    )


def words(ids: list[int]) -> str:
    return " ".join(f"w{number}" for number in ids)


def complete(server: Server, path: str = "/v1/completions", **fields: Any) -> Response:
    body = {"model": "little", "prompt": PROMPT, "temperature": 0, "max_tokens": 6, **fields}
    return ask(server, path, {key: value for key, value in body.items() if value is not None})


def events(answer: Response) -> list[Any]:
    assert answer.headers["content-type"] == "text/event-stream"
    lines = answer.body.decode().split("\n\n")
    assert lines.pop() == ""
    return [line.removeprefix("data: ") for line in lines]


def test_token_ids_are_completed(server):
    answer = complete(server)
    assert answer.status == 200, answer.body
    document = answer.json
    [choice] = document["choices"]
    assert choice["token_ids"] == greedy(PROMPT, 6)
    assert choice["finish_reason"] == "length"
    assert document["usage"] == {"prompt_tokens": 6, "completion_tokens": 6, "total_tokens": 12}
    assert (document["object"], document["model"]) == ("text_completion", "little")
    assert ask(server, "/v1/models").json["data"][0]["id"] == "little"
    assert ask(server, "/v1/models/ending").json["id"] == "ending"
    assert ask(server, "/v1/models/none").status == 404


def test_generations_are_counted(server):
    def counted() -> dict[str, float]:
        text = ask(server, "/metrics").body.decode()
        metric_pattern = (
            r'^hetero_serve_(\w+)_total\{model="little",(?:result="(\w+)",)?version="1"\} (\S+)$'
        )
        samples = re.findall(metric_pattern, text, re.MULTILINE)
        return {name + result: float(value) for name, result, value in samples}

    before = counted()
    assert complete(server, prompt=[PROMPT, PROMPT], stream=True).status == 200
    for unknown in (10**6, -1, 2**40):
        assert complete(server, prompt=[unknown]).status == 400
    after = counted()
    increases = {name: after[name] - before[name] for name in after}
    expected = {"requestssuccess": 1, "requestsfail": 3, "inferences": 2, "tokens": 12}
    assert increases == expected
    assert (
        'hetero_serve_requests_in_flight{model="little",version="1"} 0.0'
        in ask(server, "/metrics").body.decode()
    )


def test_newer_name_of_the_token_limit_takes_precedence(server):
    document = complete(server, max_tokens=6, max_completion_tokens=2).json
    assert document["choices"][0]["token_ids"] == greedy(PROMPT, 2)


def test_stream_has_the_tokens_of_the_whole_response(server):
    answer = complete(server, stream=True, stream_options=USAGE)
    *chunks, usage, done = events(answer)
    assert done == "[DONE]"
    pieces = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert [token for piece in pieces for token in piece["token_ids"]] == greedy(PROMPT, 6)
    assert pieces[-1]["finish_reason"] == "length"
    assert json.loads(usage)["usage"]["completion_tokens"] == 6


def test_text_prompts_and_stops(server):
    pytest.importorskip("tokenizers")
    expected = f" {words(greedy([0, *PROMPT], 6))}"  # the text continues the prompt
    assert complete(server, prompt=words(PROMPT)).json["choices"][0]["text"] == expected
    at = expected.rindex(" w")
    for stream, stop in product((False, True), (expected[at + 1 :], expected[at - 1 : at + 2])):
        answer = complete(server, prompt=words(PROMPT), stop=["none", stop], stream=stream)
        until = expected[: expected.index(stop)]
        chunks = [json.loads(e) for e in events(answer)[:-1]] if stream else [answer.json]
        assert "".join(part["choices"][0]["text"] for part in chunks) == until
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert complete(server, prompt=[PROMPT]).json["choices"][0]["token_ids"] == greedy(PROMPT, 6)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_other_requests_are_answered_during_tokenization(server, monkeypatch, path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    read, is_read, may_end = PromptTokenizer.encode, threading.Event(), threading.Event()

    def slow(tokenizer: PromptTokenizer, text: str, **options: bool) -> list[int]:
        is_read.set()
        waits_ended.append(may_end.wait(5))
        return read(tokenizer, text, **options)

    waits_ended: list[bool] = []
    monkeypatch.setattr(PromptTokenizer, "encode", slow)
    prompt = {"messages": CHAT, "prompt": None} if "chat" in path else {"prompt": words(PROMPT)}
    with ThreadPoolExecutor(1) as clients:
        answer = clients.submit(complete, server, path, **prompt)
        assert is_read.wait(60)
        assert ask(server, "/v2/health/live").status == 200
        may_end.set()
        assert answer.result().status == 200
    assert waits_ended == [True]


def test_only_the_beginning_of_a_stop_is_delayed(server):
    pytest.importorskip("tokenizers")
    expected = words(greedy(PROMPT, 6))
    stops = [f"{expected[-1]}!", *(f"{word[-1]}?" for word in expected.split())]
    chunks = [json.loads(e) for e in events(complete(server, stream=True, stop=stops))[:-1]]
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert texts[0] == f" {expected.split()[0][:-1]}"
    assert "".join(texts) == f" {expected}"


CHAT = [{"role": "user", "content": words(PROMPT)}]
PARTS = [{"type": "text", "text": words(PROMPT[:3])}, {"type": "text", "text": words(PROMPT[3:])}]


@pytest.mark.parametrize("model", ["little", "ending"])
def test_chat_completions(server, model):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    fields = {
        "model": model,
        "prompt": None,
        "ignore_eos": True,
        "response_format": {"type": "text"},
    }
    path, expected = "/v1/chat/completions", words(greedy(PROMPT, 6))  # the template inserts no w0
    answer = complete(server, path, messages=CHAT, **fields)
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": expected}
    answer = complete(server, path, messages=CHAT, stream=True, **fields)
    parts = [json.loads(e)["choices"][0]["delta"] for e in events(answer)[:-1]]
    assert "".join(part["content"] for part in parts) == expected
    assert [part.get("role") for part in parts] == ["assistant", *[None] * (len(parts) - 1)]
    messages = [{"role": "user", "content": PARTS[:1]}]
    variables = {"after": PARTS[1]["text"]}
    answer = complete(server, path, messages=messages, chat_template_kwargs=variables, **fields)
    assert answer.json["choices"][0]["message"]["content"] == expected
    spaced = [PARTS[0], {"type": "text", "text": " "}, PARTS[1]]
    answer = complete(server, path, messages=[{"role": "user", "content": spaced}], **fields)
    assert answer.json["choices"][0]["message"]["content"] == expected


def test_chat_fills_the_context_by_default(server, monkeypatch):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    monkeypatch.setattr(generation, "_DEFAULT_TOKENS", 3)  # for the model without a declared limit
    fields = {"prompt": None, "ignore_eos": True, "max_tokens": None, "messages": CHAT}
    for model, total in (("ending", ENDS_AT), ("little", len(PROMPT) + 3)):
        document = complete(server, "/v1/chat/completions", **{"model": model, **fields}).json
        assert document["usage"]["total_tokens"] == total
        assert document["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("message", "words_of_error"),
    [
        ({"role": "none", "content": "w1"}, "no such role"),
        ({"content": "w1"}, "role"),
        ("w1", "role"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "type: text"),
    ],
)
def test_bad_messages_are_refused(server, message, words_of_error):
    pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    answer = complete(server, "/v1/chat/completions", prompt=None, messages=[message])
    assert answer.status == 400
    assert words_of_error in answer.json["error"]["message"]


@pytest.mark.parametrize(
    "document", ["{", "[]", '{"chat_template": [{}]}', '{"bos_token": {}, "eos_token": {"id": 2}}']
)
def test_damaged_tokenizer_configuration_is_an_error(tmp_path, document):
    _write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(document)
    with pytest.raises(ArgumentError, match=r"tokenizer_config\.json"):
        PromptTokenizer(tmp_path)


def test_damaged_chat_template_is_an_error(tmp_path):
    pytest.importorskip("jinja2")
    _write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for")
    with pytest.raises(ProtocolError, match="chat template"):
        PromptTokenizer(tmp_path).encode_chat(CHAT, {})


@pytest.mark.parametrize("stream", [False, True])
def test_end_token_is_not_part_of_the_text(server, stream):
    pytest.importorskip("tokenizers")
    answer = complete(server, model="ending", stream=stream)
    chunks = [json.loads(e) for e in events(answer)[:-1]] if stream else [answer.json]
    until = greedy(PROMPT, 6).index(END)
    choices = [part["choices"][0] for part in chunks]
    assert "".join(choice["text"] for choice in choices) == "".join(
        f" {word}" for word in words(greedy(PROMPT, 6)[:until]).split()
    )
    assert choices[-1]["finish_reason"] == "stop"
    assert choices[-1]["token_ids"][-1] == END


@pytest.mark.parametrize("stream", [False, True])
def test_several_sequences_of_several_prompts(server, stream):
    pytest.importorskip("tokenizers")
    prompts = [PROMPT, [7, 8]]
    expected = [greedy(prompt, 6) for prompt in prompts for _ in range(2)]
    stop = f"w{expected[2][2]} "  # it ends only two of the sequences
    answer = complete(server, prompt=prompts, n=2, stop=stop, stream=stream, stream_options=USAGE)
    chunks = [json.loads(e) for e in events(answer)[:-1]] if stream else [answer.json]
    texts, reasons, count = [""] * 4, [""] * 4, 0
    for choice in (choice for part in chunks for choice in part["choices"]):
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
        count += len(choice["token_ids"])
    wholes = ["".join(f" {word}" for word in words(ids).split()) for ids in expected]
    assert texts == [whole.partition(stop)[0] for whole in wholes]
    assert reasons == ["length" if stop not in whole else "stop" for whole in wholes]
    assert {"length", "stop"} == {*reasons}
    usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": 8 + count}
    assert chunks[-1]["usage"] == usage
    assert all(part["usage"] is None for part in chunks[:-1])


def test_sequences_of_a_prompt_have_their_own_seeds(server):
    choices = complete(server, n=3, seed=-5, temperature=50).json["choices"]
    separate_choices = [
        complete(server, seed=-5 + i, temperature=50).json["choices"][0] for i in range(3)
    ]
    assert [choice["token_ids"] for choice in choices] == [
        choice["token_ids"] for choice in separate_choices
    ]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


def test_generate_extension_matches_generate(server):
    body = {"text_input": PROMPT, "max_tokens": 4}
    document = ask(server, "/v2/models/little/generate", body).json
    assert (document["model_name"], document["token_ids"]) == ("little", greedy(PROMPT, 4))
    parts = events(ask(server, "/v2/models/little/generate_stream", body))
    tokens = [token for part in parts for token in json.loads(part)["token_ids"]]
    assert tokens == greedy(PROMPT, 4)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "none"}, 404),
        ({"model": None}, 400),
        ({"prompt": None}, 400),
        ({"prompt": [[1], "w2", 3]}, 400),
        ({"prompt": [[1], []]}, 400),
        ({"prompt": [VOCABULARY]}, 400),
        ({"n": 0}, 400),
        ({"n": 257}, 400),
        ({"seed": 2**63}, 400),
        ({"logprobs": 2}, 400),
        ({"logprobs": 0}, 400),
        ({"temperature": -1}, 400),
        ({"temperature": "hot"}, 400),
        ({"max_tokens": -1}, 400),
        ({"stop": 5}, 400),
        ({"wishes": 3}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_refused(server, fields, status, stream):
    answer = complete(server, stream=stream, **fields)
    assert answer.status == status, answer.body
    assert answer.json["error"]["message"]


def test_failed_stream_ends_with_an_error(server, monkeypatch):
    step = BatchGeneration.__next__

    def fails_soon(self: BatchGeneration) -> list[int | None]:
        if len(self.tokens[0]) == 3:
            raise DeviceLostError("the last device is gone.")
        return step(self)

    monkeypatch.setattr(BatchGeneration, "__next__", fails_soon)
    *chunks, last = events(complete(server, stream=True))
    assert len(chunks) == 3
    error = json.loads(last)["error"]
    assert (error["message"], error["type"]) == ("the last device is gone.", "server_error")
    assert complete(server).status == 503


def test_disconnect_during_a_stream_leaves_the_model_usable(server):
    body = json.dumps({"model": "little", "prompt": [1], "max_tokens": 60, "stream": True})
    with connected(server) as disconnecting_client:
        disconnecting_client.sendall(posted(body.encode(), "/v1/completions"))
        assert disconnecting_client.recv(100)
    assert complete(server).json["choices"][0]["token_ids"] == greedy(PROMPT, 6)


@pytest.mark.parametrize("form", ["completion", "generate"])
def test_long_prompt_is_refused_before_it_is_multiplied(server, monkeypatch, form):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the prompt is read")

    monkeypatch.setattr(CompiledModel, "generate", fail)
    prompt = [1] * 200_000
    if form == "completion":
        answer = complete(server, model="ending", prompt=prompt, n=256)
        message = answer.json["error"]["message"]
    else:
        answer = ask(server, "/v2/models/ending/generate", {"text_input": prompt})
        message = answer.json["error"]
    assert answer.status == 400
    assert f"200000 tokens, expected fewer than the model's context, {ENDS_AT}" in message


@pytest.mark.parametrize("fields", [{"prompt": [[1]] * 300}, {"prompt": [[1]] * 2, "n": 129}])
def test_too_many_sequences_are_a_bad_request(server, fields):
    answer = complete(server, **fields)
    assert answer.status == 400
    assert "at most 256" in answer.json["error"]["message"]


def test_large_request_for_text_is_refused(server):
    assert complete(server, prompt="a" * (2**22 + 1)).status == 413


def test_disconnect_cancels_the_generation(server, monkeypatch):
    step, cancel = BatchGeneration.__next__, BatchGeneration.cancel
    steps, cancelled = threading.Semaphore(0), threading.Event()

    def wait_and_step(self: BatchGeneration) -> list[int | None]:
        steps.release()
        cancelled.wait(60)
        return step(self)

    def note(self: BatchGeneration, *rows: int) -> None:
        cancelled.set()
        cancel(self, *rows)

    monkeypatch.setattr(BatchGeneration, "__next__", wait_and_step)
    monkeypatch.setattr(BatchGeneration, "cancel", note)
    body = json.dumps({"model": "little", "prompt": [1], "max_tokens": 60})
    with connected(server) as client:
        client.sendall(posted(body.encode(), "/v1/completions"))
        assert steps.acquire(timeout=60)
        assert not cancelled.is_set()
    assert cancelled.wait(60)

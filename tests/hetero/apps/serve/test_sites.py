"""Requests of pages of other sites: DNS rebinding, forms and scripts."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("orjson")
from hetero.apps.serve.errors import ProtocolError
from hetero.apps.serve.options import ServerOptions
from hetero.apps.serve.sites import SiteRules
from tests.support.rows import for_each_row
from tests.support.serving import INFER, ask, plus_one, serving, tensor

LOCAL, OPEN = ServerOptions(), ServerOptions(host="0.0.0.0")
NAMED = ServerOptions(allowed_hosts=("models.example",))
PAGE = {"host": "localhost:8000", "origin": "http://evil.example"}


def check(options: ServerOptions, headers: dict[str, str]) -> None:
    SiteRules(options).check({name.encode(): value.encode() for name, value in headers.items()})


@for_each_row(
    "options, headers",
    [
        (LOCAL, {}),
        (LOCAL, {"host": "localhost"}),
        (LOCAL, {"host": "localhost:8000"}),
        (LOCAL, {"host": "127.0.0.1:8000"}),
        (LOCAL, {"host": "[::1]:8000"}),
        (LOCAL, {"host": "a.localhost"}),
        (LOCAL, {"host": "localhost:8000", "origin": "http://localhost:8000"}),
        (LOCAL, {"host": "localhost", "sec-fetch-site": "same-origin"}),
        (LOCAL, {"host": "localhost", "sec-fetch-site": "none"}),
        (NAMED, {"host": "models.example"}),
        (NAMED, {"host": "localhost", "origin": "https://models.example"}),
        (ServerOptions(allowed_hosts=("*",)), {"host": "any", "origin": "http://other"}),
        (OPEN, {"host": "models.example"}),
        (OPEN, {"host": "models.example", "origin": "https://models.example"}),
        # A proxy may replace the host; the header of the browser decides.
        (OPEN, {"host": "10.0.0.1", "origin": "https://a.b", "sec-fetch-site": "same-origin"}),
    ],
)
def test_own_requests_pass(options, headers):
    check(options, headers)


@for_each_row(
    "options, headers",
    [
        (LOCAL, {"host": "evil.example"}),
        (LOCAL, {"host": "evil.example:8000"}),
        (LOCAL, {"host": "127.0.0.1.evil.example"}),
        (LOCAL, {"host": "192.0.2.1"}),
        (LOCAL, {"host": ""}),
        (LOCAL, {"host": "[::1"}),
        (NAMED, {"host": "other.example"}),
        (LOCAL, PAGE),
        (OPEN, PAGE),
        (LOCAL, {"host": "localhost", "origin": "null"}),
        (LOCAL, {"host": "localhost:8000", "origin": "http://localhost:3000"}),
        (OPEN, {"host": "a.example", "sec-fetch-site": "cross-site"}),
        (OPEN, {"host": "a.example", "sec-fetch-site": "same-site"}),
        (NAMED, {"host": "localhost", "origin": "http://[evil"}),
    ],
)
def test_foreign_requests_are_refused(options, headers):
    with pytest.raises(ProtocolError, match="--allow-host") as caught:
        check(options, headers)
    assert caught.value.status == 403


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "without tokens and TLS"), ({"tokens": ("t",)}, "without TLS")],
)
def test_open_address_without_protection_is_warned_of(options, words, caplog):
    with serving(options={"host": "0.0.0.0", **options}, plus=plus_one()):
        [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert words in record.message


def test_loopback_address_is_not_warned_of(caplog):
    with serving(plus=plus_one()):
        assert not [r for r in caplog.records if r.levelno == logging.WARNING]


def test_server_refuses_foreign_requests_except_health_checks():
    with serving(plus=plus_one()) as server:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            for path in ("/v2", "/v2/models/plus", "/metrics"):
                response = ask(server, path, headers=headers)
                assert response.status == 403
            body = {"inputs": [tensor("x", "FP32", [1.0])]}
            assert ask(server, INFER, body, headers=headers).status == 403
            assert ask(server, "/v2/health/ready", headers=headers).status == 200
        assert ask(server, INFER, body).status == 200

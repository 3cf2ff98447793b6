"""Run the conformance suite: ``python -m tests.oip_conformance URL``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.oip_conformance.rules import RULES
from tests.oip_conformance.server_under_test import NotSupported, RuleFailed, ServerUnderTest


class Verdict(NamedTuple):
    """The outcome of a rule: passed, failed or not supported, and the reason."""

    name: str
    rule: str
    outcome: str
    reason: str = ""


def check_rules(server: ServerUnderTest) -> Iterator[Verdict]:
    """Yield the verdict of each rule, in order."""
    extensions: list[str] | None = None
    for rule in RULES:
        outcome, reason = "passed", ""
        try:
            if rule.extension and extensions is None:
                extensions = server.send("/v2").json().get("extensions", [])
            if rule.extension and rule.extension not in (extensions or ()):
                raise NotSupported(f"extension {rule.extension} is not listed")
            response = rule.request(server)
            if not rule.check(server, response):
                outcome, reason = "failed", f"{response.status}: {str(response.body)[:160]}"
        except NotSupported as error:
            outcome, reason = "not supported", f"{error}"
        except RuleFailed as error:
            outcome, reason = "failed", f"{error}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # in its documents
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
        yield Verdict(rule.name, rule.text, outcome, reason)


def main() -> int:
    """Run the suite; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.oip_conformance", description=__doc__)
    parser.add_argument("url", help="the server's URL, as http://localhost:8000")
    parser.add_argument("--model", default="", help="a model; by default the first ready one")
    parser.add_argument("--grpc", default="", help="HOST:PORT of its gRPC form")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    arguments = parser.parse_args()
    server = ServerUnderTest(arguments.url.rstrip("/"), arguments.model, arguments.grpc)
    verdicts = []
    try:
        for verdict in check_rules(server.with_model()):
            verdicts.append(verdict)
            if not arguments.json:
                print(f"{verdict.outcome:13}  {verdict.name:22}  {verdict.rule}")
                if verdict.reason:
                    print(f"{'':13}  {'':22}  -> {verdict.reason}")
    except RuleFailed as error:
        parser.exit(2, f"{error}\n")
    counts = {
        outcome: sum(verdict.outcome == outcome for verdict in verdicts)
        for outcome in ("passed", "failed", "not supported")
    }
    if arguments.json:
        print(json.dumps([verdict._asdict() for verdict in verdicts], indent=2))
    else:
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

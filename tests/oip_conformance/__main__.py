"""Run the conformance suite: ``python -m tests.oip_conformance URL``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.oip_conformance.rules import RULES
from tests.oip_conformance.subject import Broken, NotHere, Subject


class Verdict(NamedTuple):
    """What came of a rule: kept, broken or not here, and how."""

    name: str
    says: str
    verdict: str
    how: str = ""


def verdicts(server: Subject) -> Iterator[Verdict]:
    """Yield what comes of each rule, in order."""
    listed: list[str] | None = None
    for rule in RULES:
        verdict, how = "kept", ""
        try:
            if rule.extension and listed is None:
                listed = server.ask("/v2").json().get("extensions", [])
            if rule.extension and rule.extension not in (listed or ()):
                raise NotHere(f"extension {rule.extension} is not listed")
            answer = rule.ask(server)
            if not rule.expect(server, answer):
                verdict, how = "broken", f"{answer.status}: {str(answer.body)[:160]}"
        except NotHere as why:
            verdict, how = "not here", f"{why}"
        except Broken as why:
            verdict, how = "broken", f"{why}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of its documents
            verdict, how = "broken", f"{type(error).__name__}: {error}"
        yield Verdict(rule.name, rule.says, verdict, how)


def main() -> int:
    """Run the suite; return the exit code."""
    reader = argparse.ArgumentParser("python -m tests.oip_conformance", description=__doc__)
    reader.add_argument("url", help="where the server is, as http://localhost:8000")
    reader.add_argument("--model", required=True, help="a model of it; inputs are ones")
    reader.add_argument("--grpc", default="", help="HOST:PORT of its gRPC form")
    reader.add_argument("--json", action="store_true", help="print JSON for programs")
    given = reader.parse_args()
    server = Subject(given.url.rstrip("/"), given.model, given.grpc)
    found = []
    for row in verdicts(server):
        found.append(row)
        if not given.json:
            print(f"{row.verdict:8}  {row.name:22}  {row.says}")
            if row.how:
                print(f"{'':8}  {'':22}  -> {row.how}")
    broken = sum(row.verdict == "broken" for row in found)
    if given.json:
        print(json.dumps([row._asdict() for row in found], indent=2))
    else:
        kept = sum(row.verdict == "kept" for row in found)
        print(f"{kept} kept, {broken} broken, {len(found) - kept - broken} not here")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

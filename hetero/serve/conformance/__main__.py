"""``python -m hetero.serve.conformance URL``: a line for each rule; exit code 1 if one broke."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple

from hetero.serve.conformance.grpc_rules import RULES as GRPC_RULES
from hetero.serve.conformance.rest_rules import RULES as REST_RULES
from hetero.serve.conformance.subject import Broken, NotHere, Subject


class Verdict(NamedTuple):
    """What came of a rule: kept, broken or not here, and how."""

    name: str
    says: str
    verdict: str
    how: str = ""


def verdicts(server: Subject) -> Iterator[Verdict]:
    """Yield what comes of each rule, in order."""
    for rule in (*REST_RULES, *GRPC_RULES):
        try:
            rule.check(server)
            yield Verdict(rule.name, rule.says, "kept")
        except NotHere as why:
            yield Verdict(rule.name, rule.says, "not here", f"{why}")
        except Broken as how:
            yield Verdict(rule.name, rule.says, "broken", f"{how}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # of its documents
            yield Verdict(rule.name, rule.says, "broken", f"{type(error).__name__}: {error}")


def main() -> int:
    """Run the suite; return the exit code."""
    reader = argparse.ArgumentParser("python -m hetero.serve.conformance", description=__doc__)
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
            print(f"{row.verdict:8}  {row.name:22}  {row.says}")  # noqa: T201
            if row.how:
                print(f"{'':8}  {'':22}  -> {row.how}")  # noqa: T201
    broken = sum(row.verdict == "broken" for row in found)
    if given.json:
        print(json.dumps([row._asdict() for row in found], indent=2))  # noqa: T201
    else:
        kept = sum(row.verdict == "kept" for row in found)
        print(f"{kept} kept, {broken} broken, {len(found) - kept - broken} not here")  # noqa: T201
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check of a release: the tag, the package's version and the newest changelog entry agree.

``python tests/support/release_version.py v0.2.0`` fails with the difference.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def package_version() -> str:
    """Return the version in ``pyproject.toml``."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def changelog_version() -> str:
    """Return the version of the newest changelog entry, with its note, such as `(unreleased)`."""
    match = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    return match[1] if match else ""


def main(tag: str) -> int:
    """Print a difference and return 1; return 0 if all agree."""
    expected = tag.removeprefix("v")
    versions = {"pyproject.toml": package_version(), "CHANGELOG.md": changelog_version()}
    wrong = {name: version for name, version in versions.items() if version != expected}
    for name, version in wrong.items():
        print(f"{name}: expected version {expected} of tag {tag}, got {version!r}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""The version of this package, as it is installed, and versions as OpenVINO's scripts read them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version


class Version(str):  # noqa: SLOT000 - text has no slots beside its own
    """A version as text, with the fields that OpenVINO's versions have.

    Attributes
    ----------
    description : str
        What has the version.
    build_number : str
        The whole version.
    major, minor, patch : int
        Its first three numbers; 0 where there are fewer.
    """

    description: str
    build_number: str
    major: int
    minor: int
    patch: int

    def __new__(cls, text: str, description: str) -> Version:
        """Read a version."""
        made = super().__new__(cls, text)
        made.description, made.build_number = description, text
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        made.major, made.minor, made.patch = (*numbers, 0, 0, 0)[:3]
        return made


def hetero_version() -> str:
    """Return this package's version."""
    try:
        return version("hetero")
    except PackageNotFoundError:
        return "0"

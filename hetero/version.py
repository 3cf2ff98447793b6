"""The installed version of this package, and version strings with OpenVINO's fields."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version


class Version(str):  # noqa: SLOT000 - str subclasses cannot have slots
    """A version string with the fields of OpenVINO's versions.

    Attributes
    ----------
    description : str
        The name of the component.
    build_number : str
        The whole version.
    major, minor, patch : int
        The first three numbers of the version; 0 if it has fewer.
    """

    description: str
    build_number: str
    major: int
    minor: int
    patch: int

    def __new__(cls, text: str, description: str) -> Version:
        """Parse a version."""
        version = super().__new__(cls, text)
        version.description, version.build_number = description, text
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        version.major, version.minor, version.patch = (*numbers, 0, 0, 0)[:3]
        return version


@cache  # reading the metadata takes as long as a small compilation
def hetero_version() -> str:
    """Return the installed version of hetero."""
    try:
        return version("hetero")
    except PackageNotFoundError:
        return "0"

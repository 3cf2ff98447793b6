"""Commands that install optional dependencies, for the source that hetero was installed from."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import distributions
from urllib.parse import unquote, urlsplit


@cache
def install_command(extra: str = "") -> str:
    """Return the pip command that adds an extra to the installed hetero.

    pip records the folder, archive or repository that a package was installed from; a plain name
    would look for it in the package index.

    References
    ----------
    `direct_url.json`: PEP 610.
    """
    # The folder of the sources contains metadata without this record, and comes first in the path.
    records = (entry.read_text("direct_url.json") for entry in distributions(name="hetero"))
    record = next(filter(None, records), "{}")
    return f"pip install {_requirement(json.loads(record), extra)}"


def _requirement(direct_url: dict[str, object], extra: str) -> str:
    """Return the quoted requirement for a record of PEP 610; an empty record is the index."""
    name = f"hetero[{extra}]" if extra else "hetero"
    url = str(direct_url.get("url", ""))
    folder = direct_url.get("dir_info")
    if isinstance(folder, dict):
        option = "-e " if folder.get("editable") else ""
        path = unquote(urlsplit(url).path)
        return f"{option}'{path}[{extra}]'" if extra else f"{option}'{path}'"
    repository = direct_url.get("vcs_info")
    if isinstance(repository, dict):
        return f"'{name} @ {repository.get('vcs')}+{url}'"
    return f"'{name} @ {url}'" if url else f"'{name}'"

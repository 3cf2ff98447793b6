"""Configuration of the documentation site: ``sphinx-build -W docs FOLDER``, extra ``docs``."""

import inspect
import pkgutil
from enum import Enum

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from hetero.devices.plugin.properties import COMMON_PROPERTIES, Property, PropertyTable
from hetero.version import hetero_version

project = "hetero"
release = hetero_version()
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "code"  # single backticks in docstrings
autodoc_default_options = {
    "members": True,
    "inherited-members": "Mapping, dict, int, str, tuple, BaseException",  # except of these
}
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 80
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"hetero {release}"
html_extra_path = ["llms.txt"]
html_show_copyright = False
# Links in code blocks, such as localhost, are not checked; all others are.
linkcheck_timeout = 20
linkcheck_retries = 2
# `Attributes` sections name attributes that several classes have.
suppress_warnings = ["ref.python"]

#: Classes and functions that the reference has shown so far; several packages export the same.
DOCUMENTED: set[object] = set()


class PropertyTableDirective(SphinxDirective):
    """Show a `PropertyTable`: ``{property-table} module:Class.attribute`` in a Markdown page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table; a device's table omits the properties that every device has."""
        properties: PropertyTable = pkgutil.resolve_name(self.arguments[0])
        common = () if properties is COMMON_PROPERTIES else tuple(COMMON_PROPERTIES.values())
        own = (p for p in properties.values() if p not in common)
        lines = [
            "| property | type | default | can be set | description |",
            "| --- | --- | --- | --- | --- |",
            *map(table_row, sorted(own, key=lambda each: each.name)),
        ]
        table = nodes.Element()
        self.state.nested_parse(StringList(lines), self.content_offset, table)
        return table.children


def table_row(each: Property) -> str:
    """Return the row of one property in Markdown."""
    default = "" if each.default in ("", (), {}) else f"`{each.default}`"
    values = f" One of {', '.join(f'`{c}`' for c in each.choices)}." if each.choices else ""
    description = (each.doc + values).replace("|", "\\|")
    mutable = "yes" if each.mutable else "no"
    return f"| `{each.name}` | {each.type.__name__} | {default} | {mutable} | {description} |"


def skip_documented_member(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Skip members of earlier sections; show enum members; None leaves it to Sphinx."""
    if isinstance(member, Enum):
        return False
    if what != "module" or skip or not (inspect.isclass(member) or inspect.isfunction(member)):
        return None
    if member in DOCUMENTED:
        return True
    DOCUMENTED.add(member)
    return None


def setup(app: Sphinx) -> None:
    """Register the directive and the filter with Sphinx."""
    app.add_directive("property-table", PropertyTableDirective)
    app.connect("autodoc-skip-member", skip_documented_member)

"""The site: ``sphinx-build -W docs FOLDER``, with the extra ``docs``."""

from hetero.version import hetero_version

project = "hetero"
release = hetero_version()
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"hetero {release}"
html_extra_path = ["llms.txt"]
html_show_copyright = False
# Nothing is left out: blocks of commands, where localhost is, hold no links.
linkcheck_timeout = 20
linkcheck_retries = 2

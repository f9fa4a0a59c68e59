"""How Sphinx builds the documentation: ``python -m sphinx -W --keep-going -b html docs docs/_build``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

from docutils import nodes

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from managedconsumer import __version__  # noqa: E402

project = "managedconsumer"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_title = f"managedconsumer {__version__}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]
# The button leaves out prompts and, of a session, what the commands print.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
# Fields that are called ``type`` are taken for the class of that name in signatures.
suppress_warnings = ["ref.python"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True, "show-inheritance": True}
autodoc_preserve_defaults = True


def _links_between_pages(app: Any, doctree: nodes.document, docname: str) -> None:
    """Turn links to source files, which work where the sources are shown, into links to their pages."""
    folder = (Path(app.srcdir) / docname).parent
    for reference in doctree.findall(nodes.reference):
        target, fragment = urldefrag(reference.get("refuri", ""))
        if target.endswith(".rst") and "://" not in target and (folder / target).exists():
            reference["refuri"] = f"{target[:-4]}.html" + (f"#{fragment}" if fragment else "")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("doctree-resolved", _links_between_pages)

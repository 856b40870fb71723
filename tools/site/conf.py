"""Sphinx's settings for the documentation site; `tools/site/build.py` has what Sphinx reads."""

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.util.nodes import make_refnode

project = "LuWu"
author = "the authors of LuWu"
version = release = version_of("luwu")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
smartquotes = False  # texts stay as they are written

myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4  # GitHub's names, which the pages' links use

# Docstrings mark names and commands with single backquotes: names of the reference become links, the rest is code.
default_role = "py:obj"
napoleon_use_ivar = True  # attributes that a class lists and properties are not described twice by Sphinx
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["ray"]  # an extra that development environments do not have
python_maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"LuWu {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))  # Sphinx takes no other path
html_show_sphinx = False
html_copy_source = False


def shorten(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> Any:
    """Name the default timeouts in a signature instead of listing them: docs/timeouts.md has them."""
    return re.sub(r"Timeouts\(\w+=[^()]*\)", "TIMEOUTS", signature or "") or None, returned


def find_name(app: Any, environment: Any, node: Any, text: Any) -> Any:
    """Find the class of another module that a docstring names, such as `StoreOptimizer`; None: it stays code."""
    name = node.get("reftarget", "")
    is_class = name.isidentifier() and name[0].isupper()
    found = environment.get_domain("py").find_obj(environment, None, None, name, "obj", 1) if is_class else []
    if len(found) != 1:
        return None
    _, place = found[0]
    return make_refnode(app.builder, node["refdoc"], place.docname, place.node_id, text)


def setup(app: Any) -> None:
    """Add what this site has beside Sphinx's own."""
    app.connect("autodoc-process-signature", shorten)
    app.connect("missing-reference", find_name)

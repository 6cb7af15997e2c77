"""Sphinx configuration: `python3 noxfile.py docs` builds with it, warnings being errors."""

import re
import sys

from jsclient._version import __version__

project = "jsclient"
author = "the jsclient authors"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "changes"]
html_theme = "furo"
html_title = f"jsclient {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "any"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
# Ours, in the docstrings: what a cancelled call leaves behind, what survives a reconnect, where it is specified.
napoleon_custom_sections = [
    ("Cancelled", "params_style"),
]

# References out of the project are not resolved: the build needs no network. Ours all are.
_others = "|".join(map(re.escape, sorted({*sys.stdlib_module_names, "msgspec", "nats", "pyspark"})))
nitpick_ignore_regex = [("py:.*", rf"({_others})(\..*)?")]

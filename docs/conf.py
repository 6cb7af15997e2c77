"""Sphinx configuration: `python3 noxfile.py docs` builds with it, warnings being errors."""

import re
import sys
from pathlib import Path

import msgspec
from sphinx.ext.autodoc import Documenter

sys.path.insert(0, str(Path(__file__).parent / "_tools"))

from statuses import Statuses

import jsclient
from jsclient import __version__
from jsclient._exports import SOURCES

for name in jsclient.__all__:
    for public in getattr(getattr(jsclient, name), "__all__", ()) if name != "spark" else ():
        getattr(getattr(jsclient, name), public)

project = "jsclient"
author = "the jsclient authors"
copyright = "the jsclient authors"  # noqa: A001  as Sphinx calls it
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_tools", "changes"]
html_theme = "furo"
html_static_path = ["_static"]
html_js_files = ["copy.js"]
html_css_files = ["site.css"]
html_title = f"jsclient {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "any"
# The pages are built without Spark.
autodoc_mock_imports = ["polars", "pyarrow", "pyspark", "ray"]
autodoc_member_order = "bysource"
autodoc_use_legacy_class_based = True  # for Sphinx 9: `SourceModule` needs it
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
# Ours, in the docstrings: what a cancelled call leaves behind, what survives a reconnect, where it is specified.
napoleon_custom_sections = [
    ("Cancelled", "params_style"),
]

# References out of the project are not resolved: the build needs no network. Ours all are.
_others = "|".join(
    map(re.escape, sorted({*sys.stdlib_module_names, "msgspec", "nats", *autodoc_mock_imports}))
)
nitpick_ignore_regex = [
    ("py:.*", rf"({_others})(\..*)?"),
    ("py:(class|obj)", r"jsclient\..*\.([A-Z]|[A-Z][a-z]+T)"),  # type variables
    ("py:class", r"jsclient\._runtime\..*"),  # private types in public signatures
]
# Private names in public signatures, and aliases, which are in signatures without their module.
nitpick_ignore = [
    *(
        ("py:class", name)
        for name in ("Callback", "DeliverPolicyText", "EventCallback", "Handler", "Key", "OnDrift")
    ),
    *(
        ("py:class", name)
        for name in ("OnEvent", "Push", "ReplayPolicyText", "RetryDelay", "Start", "Attrs", "Rule")
    ),
    *(("py:class", name) for name in ("Changes", "EpochStart", "Filter", "Receive")),
    ("py:class", "jsclient.topics.log.SequenceStart"),
    ("py:class", "StreamStallWatch"),
    ("py:class", "jsclient.topics.stall_watch.StreamStallWatch"),
    ("py:class", "Connection"),
    ("py:class", "DataFrame"),
    ("py:class", "Frame"),
    ("py:class", "SparkSession"),
    ("py:class", "_Failure"),
    ("py:class", "jsclient._runtime.context.Closable"),
    ("py:class", "jsclient.errors._Fields"),
    ("py:class", "_Marker"),
    ("py:class", "deque"),
    ("py:class", "dict[int"),  # of a Callable in a signature
    ("py:class", "jsclient.peers.backend.Backend"),
    ("py:class", "jsclient.topics.epochs.home.Home"),
    # typing caches `Order[T]` before the class reports its public module.
    ("py:class", "jsclient.protocol.epochs.frontier.Order"),
    ("py:class", "jsclient.protocol.epochs.records.Data"),
    ("py:class", "jsclient.protocol.epochs.records.FrontierUpdate"),
    ("py:class", "jsclient.protocol.consumers.push.Mark"),
    ("py:class", "jsclient.protocol.buckets.entry.KeyValueEntry"),
    ("py:class", "jsclient.buckets.key_value.cache.KeyValueChange"),
    ("py:class", "jsclient.protocol.buckets.values.DecodedValue"),
    ("py:class", "ValueT"),
    ("py:class", "Meter"),  # of OpenTelemetry
    ("py:class", "_Queue"),
]

FIELDS = {"attribute", "data", "property"}


def without_signature(app, what, name, obj, *others):
    """Records have many fields, all of them listed: a signature would say them twice."""
    if what == "class" and issubclass(obj, msgspec.Struct):
        return "", None
    return None


def without_type(app, what, name, obj, options, lines):  # noqa: PLR0917 - as autodoc calls it
    """Napoleon takes what stands before a colon for the type of a field. Ours are annotated."""
    if what in FIELDS and lines and ":" in lines[0]:
        lines[0] = f": {lines[0]}"


class SourceModule:
    """Where autodoc finds the source of a name that reports its public module: order and comments come from there."""

    original = Documenter.get_real_modname

    def get_real_modname(self):
        defined = SOURCES.get(self.object) if isinstance(self.object, type) or callable(self.object) else None
        return defined or SourceModule.original(self)


Documenter.get_real_modname = SourceModule.get_real_modname


def setup(app):
    app.connect("autodoc-process-signature", without_signature)
    app.connect("autodoc-process-docstring", without_type, priority=400)  # before Napoleon
    app.add_directive("statuses", Statuses)

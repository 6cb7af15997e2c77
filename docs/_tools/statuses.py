"""The directive ``statuses``: the table of statuses, made from the one that the library runs on."""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from jsclient.protocol.consumers import status


def table() -> str:
    """A list table in reStructuredText."""
    rows = [("code", "description starts with", "meaning", "ends a fetch as", "error", "asking again helps")]
    for code, start, verdict in status._TABLE:
        error = "" if verdict.error is None else f"`{verdict.error.__name__}`"
        ending = "" if verdict.ending is None else verdict.ending.value
        rows.append((str(code), start, verdict.meaning.name.lower(), ending, error, _yes(verdict)))
    unknown = status._UNKNOWN
    rows.append(("other", "", unknown.meaning.name.lower(), unknown.ending.value, "`StatusError`", "no"))
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in rows:
        lines += [f"   {'*' if at == 0 else ' '} - {cell}".rstrip() for at, cell in enumerate(row)]
    return "\n".join(lines) + "\n"


def _yes(verdict: status.Verdict) -> str:
    return "" if verdict.error is None else "yes" if verdict.retryable else "no"


class Statuses(SphinxDirective):
    """The table."""

    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes(table())

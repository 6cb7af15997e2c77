"""Writes guarantee-table.md: the guarantees of each reader of a topic, and the tests for each cell.

    python docs/_tools/guarantees.py            writes docs/guarantee-table.md
    python docs/_tools/guarantees.py --check    exit code 1 if it is out of date

The statements are in the table below; the tests are found by their ``guarantee`` marks, such as
``guarantee("each.slow")``.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "guarantee-table.md"

READERS = ("work", "each", "latest", "since", "epochs")

COLUMNS = {
    "sees": "delivers",
    "slow": "if it is slow",
    "lost": "after a lost push or a disconnect",
    "resumes": "resumes by",
    "gone": "if history was removed",
    "ends": "ends with",
    "state": "state on the server",
}

CELLS = {
    "work.sees": "every message to one worker, until it is acked",
    "work.slow": "the remaining messages go to the other workers",
    "work.lost": "redelivery",
    "work.resumes": "the group's ack floor, on the server",
    "work.gone": "begins with the first available message",
    "work.ends": "leaving the group",
    "work.state": "one durable consumer for the group",
    "each.sees": "every record from its start, in order, once",
    "each.slow": "reads the history; slows no other client",
    "each.lost": "catches up from the history",
    "each.resumes": "its position",
    "each.gone": "`HistoryTruncatedError`, or an event",
    "each.ends": "the completion; a failure is raised",
    "each.state": "none (republish), or one ephemeral consumer",
    "latest.sees": "the newest record at each read, and always the end",
    "latest.slow": "skips records",
    "latest.lost": "reads the newest again",
    "latest.resumes": "not needed",
    "latest.gone": "not affected",
    "latest.ends": "the completion; a failure is raised",
    "latest.state": "none (republish), or one ephemeral consumer while a read waits",
    "since.sees": "every record strictly after its position, in order, once",
    "since.slow": "reads the history; slows no other client",
    "since.lost": "catches up from the history; a push is only a hint",
    "since.resumes": "its position, across processes",
    "since.gone": "`HistoryTruncatedError`, with the first available sequence",
    "since.ends": "the completion; a failure is raised; or never",
    "since.state": "none (republish), or one ephemeral consumer",
    "epochs.sees": "all or nothing of each epoch, across all partitions",
    "epochs.slow": "reads the history; slows no other client",
    "epochs.lost": "catches up from the history, through the same filter",
    "epochs.resumes": "its position: sequence and frontiers",
    "epochs.gone": "`EpochsLostError`, then a new snapshot",
    "epochs.ends": "an empty frontier",
    "epochs.state": "none (republish), or one ephemeral consumer",
}


def page() -> str:
    """The text of guarantee-table.md."""
    tests = marked("guarantee")
    lines = [
        "<!-- Written by docs/_tools/guarantees.py. -->",
        "",
        f"| | {' | '.join(f'`{r}`' for r in READERS)} |",
    ]
    lines.append("|" + "---|" * (len(READERS) + 1))
    for column, heading in COLUMNS.items():
        cells = (CELLS[f"{reader}.{column}"] for reader in READERS)
        lines.append(f"| **{heading}** | {' | '.join(cells)} |")
    lines += ["", "The tests for each cell:", "", "| cell | tests |", "|---|---|"]
    for cell in CELLS:
        shown = "<br>".join(f"`{test}`" for test in tests.get(cell, [])) or "none yet"
        reader, column = cell.split(".")
        lines.append(f"| `{reader}`: {COLUMNS[column]} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(PAGE, page())

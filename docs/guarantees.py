"""Writes guarantee-table.md: what each reader of a topic promises, and the tests that show each cell.

    python docs/guarantees.py            writes docs/guarantee-table.md
    python docs/guarantees.py --check    exit code 1 where it is not up to date

The statements stand in the table below; the tests are found by their ``guarantee`` marks, such as
``guarantee("each.slow")``.
"""

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "guarantee-table.md"

READERS = ("work", "each", "latest", "since", "epochs")

COLUMNS = {
    "sees": "sees",
    "slow": "when it is slow",
    "lost": "a lost push, a disconnect",
    "resumes": "goes on by",
    "gone": "history that is gone",
    "ends": "ends with",
    "state": "what the server keeps of it",
}

CELLS = {
    "work.sees": "each message, by one worker, until it is acked",
    "work.slow": "the rest waits, and goes to the others",
    "work.lost": "redelivered",
    "work.resumes": "the group's ack floor, on the server",
    "work.gone": "begins with what is there",
    "work.ends": "leaving it",
    "work.state": "one durable consumer for the group",
    "each.sees": "every record from its start, in order, once",
    "each.slow": "reads the history; slows nobody",
    "each.lost": "caught up from the history",
    "each.resumes": "its position",
    "each.gone": "`HistoryTruncatedError`, or an event",
    "each.ends": "the completion, or the reason raised",
    "each.state": "nothing (republish), or one ephemeral consumer",
    "latest.sees": "the newest when it asks, always the end",
    "latest.slow": "skips",
    "latest.lost": "reads the newest again",
    "latest.resumes": "not needed",
    "latest.gone": "does not matter",
    "latest.ends": "the completion, or the reason raised",
    "latest.state": "nothing (republish), or one ephemeral consumer while somebody waits",
    "since.sees": "every record strictly after its position, in order, once",
    "since.slow": "reads the history; slows nobody",
    "since.lost": "caught up from the history; a push is only a hint",
    "since.resumes": "its position, across processes",
    "since.gone": "`HistoryTruncatedError`, with the first that is there",
    "since.ends": "the completion, or the reason raised; or never",
    "since.state": "nothing (republish), or one ephemeral consumer",
    "epochs.sees": "all or nothing of each epoch, across all partitions",
    "epochs.slow": "reads the history; slows nobody",
    "epochs.lost": "caught up from the history, through the same filter",
    "epochs.resumes": "its place: position and frontiers",
    "epochs.gone": "`EpochsLostError`, then a new snapshot",
    "epochs.ends": "an empty frontier",
    "epochs.state": "nothing (republish), or one ephemeral consumer",
}


def page() -> str:
    """The text of guarantee-table.md."""
    tests = marked("guarantee")
    lines = ["<!-- Written by docs/guarantees.py. -->", "", f"| | {' | '.join(f'`{r}`' for r in READERS)} |"]
    lines.append("|" + "---|" * (len(READERS) + 1))
    for column, heading in COLUMNS.items():
        cells = (CELLS[f"{reader}.{column}"] for reader in READERS)
        lines.append(f"| **{heading}** | {' | '.join(cells)} |")
    lines += ["", "The tests that show it:", "", "| cell | tests |", "|---|---|"]
    for cell in CELLS:
        shown = "<br>".join(f"`{test}`" for test in tests.get(cell, [])) or "none yet"
        reader, column = cell.split(".")
        lines.append(f"| `{reader}`: {COLUMNS[column]} | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(PAGE, page())

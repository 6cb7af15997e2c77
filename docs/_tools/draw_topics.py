"""Draws the one idea: a topic is an ordered log, and readers have positions in it.

python docs/_tools/draw_topics.py           writes docs/explanation/topics.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

_PICTURE = Path(__file__).resolve().parents[1] / "explanation" / "topics.svg"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
# Colours in light and in dark. It has a ground of its own, as a page may be dark where the system is light.
_COLOURS = {
    "ground": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "line": ("#c9d1d9", "#3d444d"),
    "cell": ("#eef1f4", "#1b2129"),
    "gone": ("#f8f9fa", "#11161d"),
    "latest": ("#d4601a", "#f0883e"),
    "each": ("#0550ae", "#6cb6ff"),
    "since": ("#8250df", "#bc8cff"),
    "epochs": ("#1a8f5c", "#56d39b"),
    "work": ("#bf3989", "#f778ba"),
}
_WIDTH, _HEIGHT = 940, 484
_LEFT, _CELL, _CELLS, _TOP = 36, 54, 16, 176
_FIRST = 3  # cells before it were removed
_EPOCHS = [7, 7, 7, 8, 7, 8, 8, 9, 8, 9, 9, 10, 9]  # of the records from _FIRST on


def _text(  # noqa: PLR0917  coordinates
    x: float,
    y: float,
    text: str,
    fill: str = "text",
    size: int = 14,
    anchor: str = "start",
    weight: int = 400,
) -> str:
    return (
        f'<text class="f-{fill}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _line(  # noqa: PLR0917  coordinates
    x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 2, dash: str = ""
) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line class="s-{stroke}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
        f'stroke-width="{width:g}"{dashed}/>'
    )


def _at(cell: float) -> float:
    """The left edge of a cell: the position after the one before it."""
    return _LEFT + cell * _CELL


def _log() -> Iterator[str]:
    yield _text(
        _LEFT,
        _TOP - 118,
        "A topic is an ordered log. A reader has a position in it.",
        size=20,
        weight=600,
    )
    yield _text(_LEFT, _TOP - 94, "The server keeps the log. Each reader keeps its own position.", "faint")
    for cell in range(_CELLS):
        gone, last = cell < _FIRST, cell == _CELLS - 1
        kind = "gone" if gone else "cell"
        dash = ' stroke-dasharray="4 4"' if gone else ""
        yield (
            f'<rect class="f-{kind} s-line" x="{_at(cell) + 2:g}" y="{_TOP}" width="{_CELL - 4}" height="44" '
            f'rx="6" stroke-width="1.5"{dash}/>'
        )
        middle = _at(cell) + _CELL / 2
        yield _text(
            middle, _TOP + 20, str(cell + 38), "faint" if gone else "text", 13, "middle", 400 if gone else 600
        )
        if last:
            yield _text(middle, _TOP + 36, "finish", "faint", 11, "middle")
        elif not gone:
            epoch = _EPOCHS[(cell - _FIRST) % len(_EPOCHS)]
            yield _text(middle, _TOP + 36, f"epoch {epoch}", "epochs", 10, "middle")
    yield _text(_at(0) + 4, _TOP + 64, "removed by a limit", "faint", 12)


def _above(cell: float, height: float, name: str, text: str, anchor: str = "start") -> Iterator[str]:
    x = _at(cell)
    yield _line(x, _TOP - height, x, _TOP - 3, name)
    yield f'<path class="f-{name}" d="M {x - 5:g} {_TOP - 11} L {x + 5:g} {_TOP - 11} L {x:g} {_TOP - 2} Z"/>'
    shift = 8 if anchor == "start" else -8
    yield _text(x + shift, _TOP - height + 10, name, name, 15, anchor, 700)
    yield _text(x + shift, _TOP - height + 28, text, "faint", 12, anchor)


def _lane(
    number: int,
    name: str,
    start: float,
    end: float,
    text: str,
    *,
    dots: bool = False,
    dropped: tuple[int, ...] = (),
) -> Iterator[str]:
    y = _TOP + 100 + number * 40
    yield _text(_LEFT, y + 5, name, name, 15, weight=700)
    x1, x2 = _at(start), _at(end)
    if dots:
        for cell in (4, 9, 13, 15):
            yield f'<circle class="f-{name}" cx="{_at(cell) + _CELL / 2:g}" cy="{y}" r="5"/>'
    else:
        yield _line(x1, y, x2, y, name, 4)
        yield f'<circle class="f-{name}" cx="{x1:g}" cy="{y}" r="6"/>'
        yield f'<path class="f-{name}" d="M {x2:g} {y - 7} L {x2 + 11:g} {y} L {x2:g} {y + 7} Z"/>'
    for cell in dropped:
        x = _at(cell) + _CELL / 2
        yield _line(x - 16, y, x + 16, y, "ground", 6)
        yield f'<circle class="s-{name}" cx="{x:g}" cy="{y}" r="5" fill="none" stroke-width="2"/>'
    yield _text(_at(_FIRST) + 4, y + 20, text, "faint", 12)


def _lanes() -> Iterator[str]:
    yield from _lane(0, "latest", 0, 0, "the newest record whenever it reads, and always the end", dots=True)
    yield from _lane(
        1, "each", _FIRST, _CELLS - 0.3, "every record from its start, in order, once, to the end"
    )
    yield from _lane(
        2,
        "since",
        6,
        _CELLS - 0.3,
        "every record after a saved position, in another process, a week later",
    )
    yield from _lane(
        3,
        "epochs",
        10,
        _CELLS - 0.3,
        "begins here: nothing of epochs 7 and 8, which had begun; everything of 9 and 10",
        dropped=(11,),
    )
    yield from _lane(
        4,
        "work",
        8,
        _CELLS - 0.3,
        "the server keeps the position: each record goes to one worker, until it is acked",
    )


def draw() -> str:
    """The picture as SVG."""
    light = " ".join(f".f-{n} {{ fill: {c} }} .s-{n} {{ stroke: {c} }}" for n, (c, _) in _COLOURS.items())
    dark = " ".join(f".f-{n} {{ fill: {c} }} .s-{n} {{ stroke: {c} }}" for n, (_, c) in _COLOURS.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="{_FONT}" '
        'role="img" aria-label="A log of numbered records with the five readers: latest sees some, each sees all, '
        'since all after a position, epochs all or nothing of each epoch, work shares them among workers">',
        f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>",
        f'<rect class="f-ground" width="{_WIDTH}" height="{_HEIGHT}" rx="12"/>',
        *_log(),
        *_above(6, 52, "since", "after record 43", "end"),
        *_above(10, 52, "epochs", "a snapshot"),
        *_lanes(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    _PICTURE.write_text(draw(), encoding="utf-8")

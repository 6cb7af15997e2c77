"""The picture of the table: a row for each work, with rate and CPU side by side on logarithmic axes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.clients import CLIENTS, OURS
from benchmarks.figures import Summary
from benchmarks.works import Work

__all__ = ["DARK", "LIGHT", "Axis", "Theme", "picture"]

Clients = Mapping[str, Mapping[str, Summary]]


@dataclass(frozen=True)
class Theme:
    """Colours. The clients' colours also differ in lightness, and their marks in shape."""

    text: str
    faint: str
    line: str
    clients: Mapping[str, str]


LIGHT = Theme(
    text="#1f2328",
    faint="#59636e",
    line="#d8dee4",
    clients={
        "raw": "#818b98",
        "nats.go": "#0f8a9d",
        "jsclient": "#0550ae",
        "jsclient-speedups": "#0550ae",
        "nats-py": "#d4601a",
        "natsrpy": "#8250df",
        "nats-jetstream": "#1a8f5c",
    },
)
DARK = Theme(
    text="#e6edf3",
    faint="#9198a1",
    line="#30363d",
    clients={
        "raw": "#848d97",
        "nats.go": "#39c5cf",
        "jsclient": "#6cb6ff",
        "jsclient-speedups": "#6cb6ff",
        "nats-py": "#f0883e",
        "natsrpy": "#b392f0",
        "nats-jetstream": "#56d39b",
    },
)

_WIDTH, _TOP, _ROW, _BOTTOM = 920, 88, 52, 40
_LABELS = 210  # px for the names of the works
_PANEL = 316
_GAP = 34
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_LABELLED = {
    "jsclient": -11,
    "jsclient-speedups": 20,
    "nats-py": 20,
}  # px from the row's line to the position of the value


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of ``width`` px, which starts at ``left`` with the value ``low`` and ends with ``high``."""

    low: float
    high: float
    left: float
    width: float

    @classmethod
    def over(cls, values: Iterable[float], remaining: float, width: float) -> Axis:
        """Return an axis on which all values fit."""
        result = [value for value in values if value > 0] or [1.0]
        # A third of a decade, so that no half of the picture is empty.
        low, high = math.floor(math.log10(min(result)) * 3), math.ceil(math.log10(max(result)) * 3)
        return cls(10.0 ** (low / 3), 10.0 ** (max(high, low + 3) / 3), remaining, width)

    def at(self, value: float) -> float:
        """Return the position of a value in px. Values outside of the axis are at its ends."""
        part = math.log(max(self.low, min(self.high, value)) / self.low) / math.log(self.high / self.low)
        return self.left + part * self.width

    def ticks(self) -> list[float]:
        """Return the powers of ten on the axis."""
        low, high = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**n for n in range(low, high + 1)]


def picture(works: Sequence[Work], runs: Mapping[str, Clients], theme: Theme, about: str) -> str:
    """Return an SVG file. ``about`` describes the source of the figures in a sentence."""
    works = [work for work in works if "jsclient" in runs.get(work.name, {})]
    clients = [client for client in CLIENTS if any(client in runs[work.name] for work in works)]
    height = _TOP + _ROW * len(works) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="{_FONT}" font-size="13" fill="{theme.text}">',
        "<title>Messages a second, and CPU time for a message, by client</title>",
        f"<desc>{escape(about)}</desc>",
        *_legend(clients, theme),
    ]
    for number, work in enumerate(works):
        y = _TOP + _ROW * number + _ROW / 2
        parts += [_text(0, y + 4, line, theme.text) for line in [_plain(work.title)]]
    panels = (
        ("rate", "messages a second (log scale, more is better)"),
        ("cpu_us", "CPU µs for a message (log scale, less is better)"),
    )
    for number, (figure, title) in enumerate(panels):
        remaining = _LABELS + number * (_PANEL + _GAP)
        values = [c[figure].median for work in works for c in runs[work.name].values()]
        parts += _panel(works, runs, Axis.over(values, remaining, _PANEL), theme, figure=figure, title=title)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(clients: Sequence[str], theme: Theme) -> list[str]:
    parts, x = [], float(_LABELS)
    for client in clients:
        name = "raw socket (the limit)" if client == "raw" else client
        parts += [_mark(client, x + 5, 16, theme), _text(x + 18, 20, name, theme.text)]
        x += 18 + 6.4 * len(name) + 26
    return parts


def _panel(
    works: Sequence[Work], runs: Mapping[str, Clients], axis: Axis, theme: Theme, *, figure: str, title: str
) -> list[str]:
    bottom = _TOP + _ROW * len(works)
    parts = [_text(axis.left, 54, title, theme.text, weight=600)]
    for tick in axis.ticks():
        x = axis.at(tick)
        parts.append(_line(x, _TOP - 4, x, bottom, theme.line))
        parts.append(_text(x, bottom + 18, _tick(tick), theme.faint, anchor="middle", size=12))
    for number, work in enumerate(works):
        y = _TOP + _ROW * number + _ROW / 2
        parts.append(_line(axis.left, y, axis.left + axis.width, y, theme.line))
        result = runs[work.name]
        # Draw jsclient last, so that its marks are on top.
        for client in sorted(result, key=lambda c: (c in OURS, CLIENTS.index(c))):
            value = result[client][figure]
            x = axis.at(value.median)
            colour = theme.clients[client]
            if axis.at(value.high) - axis.at(value.low) > 2:
                parts.append(_line(axis.at(value.low), y, axis.at(value.high), y, colour, width=2))
            parts.append(_mark(client, x, y, theme))
            if client in _LABELLED:
                at = min(max(x, axis.left + 12), axis.left + axis.width - 12)
                weight = 600 if client in OURS else 400
                parts.append(
                    _text(
                        at,
                        y + _LABELLED[client],
                        _number(value.median),
                        colour,
                        anchor="middle",
                        size=12,
                        weight=weight,
                    )
                )
    return parts


def _mark(client: str, x: float, y: float, theme: Theme) -> str:
    colour = theme.clients[client]
    match client:
        case "raw":
            return _line(x, y - 9, x, y + 9, colour, width=3)
        case "jsclient":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{colour}"/>'
        case "jsclient-speedups":
            position = f'cx="{x:.1f}" cy="{y:.1f}" r="5.5"'
            return f'<circle {position} fill="none" stroke="{colour}" stroke-width="2.5"/>'
        case "nats.go":
            points = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y + 5:.1f} {x - 6:.1f},{y + 5:.1f}"
            return f'<polygon points="{points}" fill="{colour}"/>'
        case "nats-py":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
        case "natsrpy":
            points = (
                f"{x:.1f},{y - 5.5:.1f} {x + 5.5:.1f},{y:.1f} {x:.1f},{y + 5.5:.1f} {x - 5.5:.1f},{y:.1f}"
            )
            return f'<polygon points="{points}" fill="{colour}"/>'
        case _:
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(
    x: float, y: float, text: str, colour: str, *, anchor: str = "start", size: int = 13, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _number(value: float) -> str:
    """Return the value with two digits, or with all digits before the point."""
    if value >= 950_000:
        return f"{value / 1_000_000:.1f}M"
    if value >= 1_000:
        return f"{value / 1_000:.{1 if value < 9_950 else 0}f}k"
    return f"{value:.{0 if value >= 9.95 else 1 if value >= 0.95 else 2}f}"


def _tick(value: float) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _plain(title: str) -> str:
    return title.replace("`", "")

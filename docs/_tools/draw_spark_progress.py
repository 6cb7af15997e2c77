"""Draw the course of the demonstration's Spark queries, as `python -m examples.flights --spark-progress FILE` keeps it.

python docs/_tools/draw_spark_progress.py FILE      keeps FILE as explanation/spark-progress.json, and draws it
python docs/_tools/draw_spark_progress.py           draws that again, as explanation/spark-progress.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parents[1] / "explanation"
_KEPT, _PICTURE = _HERE / "spark-progress.json", _HERE / "spark-progress.svg"

_WIDTH, _LEFT, _RIGHT = 920, 118, 96
_CURVES, _HEIGHT = 60, 170  # px: where the upper panel begins, and its height
_LANES, _LANE = 252, 34
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
# Colours in light and in dark. It has a ground of its own, as a page may be dark where the system is light.
_COLOURS = {
    "ground": ("#ffffff", "#0d1117"),
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#59636e", "#9198a1"),
    "line": ("#d8dee4", "#30363d"),
    "band": ("#eef1f4", "#1b2129"),
    "killed": ("#cf222e", "#ff7b72"),
    "statistics": ("#0550ae", "#6cb6ff"),
    "rebooking": ("#d4601a", "#f0883e"),
    "archive": ("#1a8f5c", "#56d39b"),
}
_DARK = " ".join(
    f".f-{name} {{ fill: {dark} }} .s-{name} {{ stroke: {dark} }}" for name, (_, dark) in _COLOURS.items()
)
_STYLE = f"@media (prefers-color-scheme: dark) {{ {_DARK} }}"


def _fill(colour: str) -> str:
    return f'class="f-{colour}" fill="{_COLOURS[colour][0]}"'


def _stroke(colour: str) -> str:
    return f'class="s-{colour}" stroke="{_COLOURS[colour][0]}"'


def picture(kept: dict[str, Any]) -> str:
    """An SVG file: above, how much of its input each query has read; below, its batches."""
    log, queries, about = kept["log"], kept["queries"], kept["about"]
    seconds = max(entry["at"] for entry in log) * 1.02
    scale = (_WIDTH - _LEFT - _RIGHT) / seconds
    bottom = _LANES + _LANE * len(queries)
    height = bottom + 44

    def x(at: float) -> float:
        return _LEFT + at * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" font-family="{_FONT}" font-size="13">',
        "<title>Progress of the demonstration's Spark queries</title>",
        f"<desc>Share of the rows that each query has read, and its batches, over {seconds:.0f} seconds.</desc>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{height}" rx="6" {_fill("ground")}/>',
        _text(
            16, 26, f"{about['flights']:,} flights through Spark {about['spark']} on two cores", weight=600
        ),
    ]
    for begun, up, killed in _starts(log):
        parts.append(
            f'<rect x="{x(begun):.1f}" y="{_CURVES}" width="{(up - begun) * scale:.1f}" '
            f'height="{bottom - _CURVES}" {_fill("band")}/>'
        )
        told = "starts again from its checkpoints" if killed else "Spark starts"
        parts.append(_text(x(begun) + 5, _CURVES + 15, told, "faint", size=11))
        if killed:
            parts.append(_line(x(begun), _CURVES - 10, x(begun), bottom, "killed", width=2))
            parts.append(
                _text(
                    x(begun), _CURVES - 14, "SIGKILL for driver and JVM", "killed", anchor="middle", size=12
                )
            )
    parts += _axes(seconds, x, bottom)
    for number, (name, query) in enumerate(queries.items()):
        parts += _curve(name, log, query["total"] or query["rows"], x)
        parts += _lane(name, query, _batches(name, log), _LANES + _LANE * number, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _starts(log: list[dict[str, Any]]) -> Iterator[tuple[float, float, bool]]:
    """When Spark was being started: from, to, and whether because it had been killed."""
    begun, killed = 0.0, False
    for entry in log:
        match entry.get("event"):
            case "start" | "killed" as event:
                begun, killed = entry["at"], event == "killed"
            case "up":
                yield begun, entry["at"], killed


def _axes(seconds: float, x: Any, bottom: float) -> list[str]:
    parts = [_text(_LEFT - 12, _CURVES - 14, "rows read", "faint", anchor="end", size=12)]
    for percent in (0, 50, 100):
        y = _CURVES + _HEIGHT * (1 - percent / 100)
        parts.append(_line(_LEFT, y, _WIDTH - _RIGHT, y, "line"))
        parts.append(_text(_LEFT - 12, y + 4, f"{percent} %", "faint", anchor="end", size=12))
    step = next(step for step in (5, 10, 20, 50, 100) if seconds / step <= 12 or step == 100)
    for at in range(0, int(seconds) + 1, step):
        parts.append(_line(x(at), bottom, x(at), bottom + 4, "faint"))
        parts.append(_text(x(at), bottom + 18, f"{at}", "faint", anchor="middle", size=12))
    parts.append(_text(_WIDTH - _RIGHT + 12, bottom + 18, "seconds", "faint", size=12))
    return parts


def _batches(name: str, log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in log if entry.get("query") == name]


def _curve(name: str, log: list[dict[str, Any]], total: int, x: Any) -> list[str]:
    """A step with each batch. What was committed just before the kill could not be told: the next step has it."""
    points, before = [], 0.0
    untold = total - max((entry["rows_in_all"] for entry in _batches(name, log)), default=total)
    again = [entry["at"] for entry in log if entry.get("event") == "restart"]
    for entry in _batches(name, log):
        rows = entry["rows_in_all"] + (untold if again and entry["at"] > again[0] else 0)
        share = min(rows / total, 1.0) if total else 0.0
        begun = entry["at"] - entry["milliseconds"]["triggerExecution"] / 1000
        points += [(begun, before)] if not points else []
        points += [(entry["at"], before), (entry["at"], share)]
        before = share
    path = " ".join(f"{x(at):.1f},{_CURVES + _HEIGHT * (1 - share):.1f}" for at, share in points)
    return [f'<polyline points="{path}" fill="none" {_stroke(name)} stroke-width="2"/>']


def _lane(name: str, query: dict[str, Any], batches: list[dict[str, Any]], top: float, x: Any) -> list[str]:
    """The batches, as long as each took."""
    middle = top + _LANE / 2
    parts = [
        _text(_LEFT - 12, middle + 4, name, name, anchor="end", weight=600),
        _text(_WIDTH - _RIGHT + 12, middle, f"{query['rows']:,} rows", "faint", size=11),
        _text(
            _WIDTH - _RIGHT + 12,
            middle + 13,
            f"{len(batches)} batch{'es'[: 2 * (len(batches) != 1)]}",
            "faint",
            size=11,
        ),
    ]
    for entry in batches:
        took = entry["milliseconds"]["triggerExecution"] / 1000
        width = max(x(took) - x(0) - 1, 1.5)
        parts.append(
            f'<rect x="{x(entry["at"] - took):.1f}" y="{top + 6:.1f}" width="{width:.1f}" height="{_LANE - 12}" '
            f'rx="2" {_fill(name)} fill-opacity="0.75">'
            f"<title>batch {entry['batch']}: {entry['rows']:,} rows in {took:.1f} s</title></rect>"
        )
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, width: float = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {_stroke(colour)} '
        f'stroke-width="{width:g}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    colour: str = "text",
    *,
    anchor: str = "start",
    size: int = 13,
    weight: int = 400,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_fill(colour)} text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def main(arguments: list[str]) -> int:
    if arguments:
        _KEPT.write_text(Path(arguments[0]).read_text(encoding="utf-8"), encoding="utf-8")
    _PICTURE.write_text(picture(json.loads(_KEPT.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

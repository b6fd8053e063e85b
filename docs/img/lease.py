#!/usr/bin/env python3
"""Writes lease.svg, the picture in docs/guide/concepts.md: lease, belief and fence of a holder that is paused.

Edit ROWS and EVENTS, then run:  python3 docs/img/lease.py
"""
import pathlib
import sys
from xml.sax.saxutils import escape

# Time goes from 0 to 100. ("row", name, below) · bars: (row, from, to, style, text)
ROWS = [
    ("store", "store", "who may hold"),
    ("first", "first holder", "fence 41"),
    ("second", "second holder", "fence 42"),
    ("data", "protected data", "remembers the fence"),
]
BARS = [
    ("store", 4, 40, "first", "lease of fence 41"),
    ("store", 40, 96, "second", "lease of fence 42, renewed every third"),
    ("first", 5, 37, "first", "belief: held"),
    ("first", 22, 72, "pause", "paused (GC, suspend): no check runs"),
    ("second", 41, 95, "second", "belief: held"),
]
# (from row, to row, at, style, text)
EVENTS = [
    ("first", "data", 16, "ok", "write, fence 41"),
    ("second", "data", 52, "ok", "write, fence 42"),
    ("first", "data", 74, "bad", "late write, fence 41: refused"),
]
MARKS = [
    (37, "belief ends first"),
    (40, "lease ends"),
]

LEFT, TOP, ROW, SCALE, BAR = 150, 52, 84, 7.6, 30
WIDTH, HEIGHT = LEFT + 100 * SCALE + 20, TOP + ROW * len(ROWS) + 6
LIGHT = {
    "ink": "#1f2328", "soft": "#59636e", "line": "#d1d9e0", "page": "#ffffff", "first": "#b6d6ff", "second": "#b4e8c0",
    "pause": "#f3d9a4", "ok": "#116329", "bad": "#cf222e",
}
DARK = {
    "ink": "#f0f6fc", "soft": "#9198a1", "line": "#3d444d", "page": "#0d1117", "first": "#1f4f87", "second": "#1f5c34",
    "pause": "#6b4c12", "ok": "#7ee787", "bad": "#ff7b72",
}


def colours(of):
    return (
        "  text {{ fill: {ink} }} .soft {{ fill: {soft} }} .page {{ fill: {page} }} .line {{ stroke: {line} }}\n"
        "  .first {{ fill: {first} }} .second {{ fill: {second} }} .pause {{ fill: {pause} }}\n"
        "  .ok {{ stroke: {ok} }} .bad {{ stroke: {bad} }} .ok-head {{ fill: {ok} }} .bad-head {{ fill: {bad} }}\n"
        "  .mark {{ stroke: {soft} }} .label {{ stroke: {page} }}"
    ).format(**of)


STYLE = f"""
  text {{ font: 12px system-ui, -apple-system, "Segoe UI", sans-serif }}
  .name {{ font-weight: 600; font-size: 14px }} .soft {{ font-size: 11px }} .label {{ paint-order: stroke; stroke-width: 3 }}
  .ok, .bad {{ stroke-width: 2 }} .bad, .mark {{ stroke-dasharray: 5 3 }}
{colours(LIGHT)}
  @media (prefers-color-scheme: dark) {{
{colours(DARK)}
  }}
"""


def x(time):
    return round(LEFT + time * SCALE, 1)


def y(row):
    return TOP + ROW * [key for key, _, _ in ROWS].index(row)


def text(at, height, words, style, anchor="start"):
    return f'<text x="{at}" y="{height}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def draw():
    shapes = []
    for key, name, below in ROWS:
        shapes += [
            f'<line x1="8" y1="{y(key) + 58}" x2="{WIDTH - 12}" y2="{y(key) + 58}" class="line"/>',
            text(12, y(key) + 24, name, "name"),
            text(12, y(key) + 42, below, "soft"),
        ]
    for row, start, end, style, words in BARS:
        lower = 18 if style == "pause" else 0
        size = f'width="{round((end - start) * SCALE, 1)}" height="{BAR - lower // 2}"'
        shapes.append(f'<rect x="{x(start)}" y="{y(row) + 10 + lower}" {size} rx="4" class="{style}"/>')
        shapes.append(text(x(start) + 8, y(row) + 26 + lower, words, "words"))
    for number, (at, words) in enumerate(MARKS):
        height = 16 + 15 * number
        shapes.append(f'<line x1="{x(at)}" y1="{height + 4}" x2="{x(at)}" y2="{y("data") - 26}" class="mark"/>')
        shapes.append(text(x(at) + 4, height, words, "soft"))
    for start, end, at, style, words in EVENTS:
        top, bottom = y(start) + (54 if style == "bad" else 40), y(end) + 20
        shapes.append(f'<line x1="{x(at)}" y1="{top}" x2="{x(at)}" y2="{bottom - 7}" class="{style}"/>')
        shapes.append(f'<path d="M{x(at)} {bottom} l-4 -8 h8 z" class="{style}-head"/>')
        shapes.append(text(x(at), bottom + 16, words, "label", "middle"))
    title = "A paused holder: its lease ends, another client is granted the lock, and its late write is refused"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {HEIGHT}" role="img" aria-label="{title}">'
    )
    page = f'<rect width="{WIDTH:.0f}" height="{HEIGHT}" class="page"/>'
    return "\n".join([opening, f"<title>{title}</title>", f"<style>{STYLE}</style>", page, *shapes, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.buffer.write(draw().encode())
    else:
        pathlib.Path(__file__).with_suffix(".svg").write_text(draw(), encoding="utf-8")

#!/usr/bin/env python3
"""Writes claim.svg, the picture in docs/architecture.md: how a claim goes from lock() to a store and back.

Edit ACTORS and STEPS, then run:  python3 docs/img/claim.py
"""
import pathlib
import sys
from xml.sax.saxutils import escape

ACTORS = [
    ("code", "your code", "locks.mutex(name)"),
    ("engine", "engine", "gate.rs, acquire.rs"),
    ("watchdog", "watchdog", "one task per client"),
    ("driver", "driver", "a crate in stores/"),
    ("store", "store", "Redis, etcd, SQL, …"),
]
# ("call" | "reply", from, to, text) · ("note", at, text) · ("begin", title) · ("end",)
STEPS = [
    ("call", "code", "engine", "lock(): checks name, ttl, owner"),
    ("note", "engine", "gate: exclusive claims of one process queue behind one claim for each name"),
    ("call", "engine", "driver", "attempt(claim)"),
    ("call", "driver", "store", "one script or transaction"),
    ("reply", "store", "driver", "granted or pending"),
    ("reply", "driver", "engine", "Attempt::Granted or Attempt::Pending"),
    ("begin", "while the answer is Pending"),
    ("call", "engine", "watchdog", "keep the waiter alive"),
    ("call", "engine", "driver", "watch(claim), unless the reply says that it is watched"),
    ("call", "engine", "store", "attempt(claim) again, with the same claim id: it may be free by now"),
    ("reply", "store", "engine", "notification: a hint, or the grant itself; a slow poll replaces one that was lost"),
    ("call", "engine", "driver", "attempt(claim): asks the store, or takes the grant that came"),
    ("end",),
    ("reply", "store", "engine", "Granted: fence and lease"),
    ("call", "engine", "watchdog", "hold: belief ends before the lease"),
    ("reply", "engine", "code", "Guard"),
    ("begin", "while the guard lives"),
    ("call", "watchdog", "store", "renew(claims of this client), in batches, every third of the lease"),
    ("reply", "store", "watchdog", "held until …, or gone"),
    ("reply", "watchdog", "code", "lost(): refused, or no answer in time"),
    ("end",),
    ("call", "code", "engine", "release(), or drop"),
    ("call", "engine", "store", "release(claim id): the next claim can be granted, its waiter is notified"),
    ("reply", "store", "engine", "Released or NotHeld"),
    ("reply", "engine", "code", "Released"),
]

COLUMN, LEFT, TOP, ROW, HEAD = 216, 108, 24, 34, 46
LIGHT = {
    "ink": "#1f2328", "soft": "#59636e", "line": "#818b98", "call": "#0550ae", "reply": "#116329",
    "box": "#f6f8fa", "page": "#ffffff",
}
DARK = {
    "ink": "#f0f6fc", "soft": "#9198a1", "line": "#656c76", "call": "#79c0ff", "reply": "#7ee787",
    "box": "#151b23", "page": "#0d1117",
}
SHAPES = """
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; text-anchor: middle }
  .name { font-weight: 600; font-size: 14px }
  .soft { font-size: 11px }
  .left { text-anchor: start }
  .label, .soft { paint-order: stroke; stroke-width: 3 }
  .life { stroke-dasharray: 2 4 }
  .frame { fill: none; stroke-dasharray: 6 4 }
  .call, .reply { stroke-width: 1.5 }
  .reply { stroke-dasharray: 5 3 }
"""


def colours(of):
    return (
        "  text {{ fill: {ink} }} .soft {{ fill: {soft} }} .page {{ fill: {page} }} .box {{ fill: {box} }}\n"
        "  .label, .frame-title {{ stroke: {page} }}\n"
        "  .life, .box, .frame {{ stroke: {line} }} .call {{ stroke: {call} }} .reply {{ stroke: {reply} }}\n"
        "  .head-call {{ fill: {call} }} .head-reply {{ fill: {reply} }}"
    ).format(**of)


STYLE = f"{SHAPES}{colours(LIGHT)}\n  @media (prefers-color-scheme: dark) {{\n{colours(DARK)}\n  }}\n"


def x(actor):
    return LEFT + COLUMN * [key for key, _, _ in ACTORS].index(actor)


def text(at, y, words, style):
    return f'<text x="{at}" y="{y}" class="{style}">{escape(words)}</text>'


def arrow(style, start, end, y, words):
    step = 7 if start < end else -7
    return [
        f'<line x1="{start}" y1="{y}" x2="{end - step}" y2="{y}" class="{style}"/>',
        f'<path d="M{end} {y} l{-step} -4 v8 z" class="head-{style}"/>',
        text((start + end) / 2, y - 7, words, "label"),
    ]


def draw():
    shapes, y, frame = [], TOP + HEAD + ROW, None
    width = 2 * LEFT + COLUMN * (len(ACTORS) - 1)
    for step in STEPS:
        match step:
            case ("begin", title):
                frame = y - 12
                shapes.append(text(18, y + 2, title, "soft left frame-title"))
                y += 30
                continue
            case ("end",):
                size = f'width="{width - 16}" height="{y - frame - 16}"'
                shapes.append(f'<rect x="8" y="{frame}" {size} rx="6" class="frame"/>')
                y += 14
                continue
            case ("note", at, words):
                shapes.append(f'<rect x="{x(at) - 12}" y="{y - 20}" width="490" height="26" rx="4" class="box"/>')
                shapes.append(text(x(at) - 2, y - 3, words, "left"))
            case (style, start, end, words):
                shapes += arrow(style, x(start), x(end), y, words)
        y += ROW
    heads = []
    for key, name, below in ACTORS:
        heads += [
            f'<line x1="{x(key)}" y1="{TOP + HEAD}" x2="{x(key)}" y2="{y - 10}" class="life"/>',
            f'<rect x="{x(key) - 84}" y="{TOP}" width="168" height="{HEAD}" rx="6" class="box"/>',
            text(x(key), TOP + 20, name, "name"),
            text(x(key), TOP + 37, below, "soft"),
        ]
    title = "How a claim goes from lock() to a store and back"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img" aria-label="{title}">'
    page = f'<rect width="{width}" height="{y}" class="page"/>'
    head = [opening, f"<title>{title}</title>", f"<style>{STYLE}</style>", page]
    return "\n".join([*head, *heads, *shapes, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.buffer.write(draw().encode())
    else:
        pathlib.Path(__file__).with_suffix(".svg").write_text(draw(), encoding="utf-8")

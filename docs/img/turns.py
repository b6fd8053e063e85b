#!/usr/bin/env python3
"""Writes turns.svg, the picture at the top of README.md: two shells take turns.

    python3 docs/img/turns.py                     draw it again from turns.json
    python3 docs/img/turns.py --record OARLOCK    run two shells with this program, and write both files
    python3 docs/img/turns.py --check OARLOCK     run them, and compare what they print with turns.json

The shells are real, each on a pseudo-terminal of its own; turns.json has what they showed, and when.
"""
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from xml.sax.saxutils import escape

COLUMNS, ROWS, HOST = 96, {"first": 4, "second": 7}, "ci-7"
# Not by the clock: the first command runs until the recorder lets it end.
DEPLOY = "#!/bin/sh\necho deploying\nuntil [ -e finish ]; do sleep 0.1; done\necho deployed\n"
PATIENCE = 30
FILE = pathlib.Path(__file__).with_suffix(".json")


class Shell:
    """A shell on a terminal, and what its screen shows."""

    def __init__(self, rows, folder, oarlock):
        self.rows, self.lines, self.row, self.column, self.pending = rows, [""], 0, 0, ""
        environment = {
            "PATH": f"{oarlock.parent}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "xterm", "HOME": folder,
            "LANG": "C.UTF-8", "OARLOCK_URL": f"local:{folder}/store",
        }
        shell = "exec sh -i"
        named = ["unshare", "--uts", "--map-root-user", "sh", "-c", f"hostname {HOST}; {shell}"]
        possible = shutil.which("unshare") and subprocess.run([*named[:3], "true"], capture_output=True).returncode == 0
        command = named if possible else ["sh", "-c", shell]
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def read(self):
        try:
            self.pending += os.read(self.terminal, 65536).decode(errors="replace")
        except OSError:
            return
        # What a program of this picture may send: text, CR, LF, backspace, "clear the line", colours.
        while self.pending:
            escaped = re.match(r"\x1b\[[?0-9;]*[A-Za-z]|\x1b[()=>][0B]?", self.pending)
            if escaped:
                if escaped[0] == "\x1b[2K":
                    self.lines[self.row] = ""
                self.pending = self.pending[escaped.end():]
            elif self.pending[0] == "\x1b" and len(self.pending) < 8:
                return
            else:
                self.put(self.pending[0])
                self.pending = self.pending[1:]

    def put(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\b":
            self.column -= 1
        elif letter == "\n" or self.column == COLUMNS:
            self.row, self.column = self.row + 1, 0 if letter != "\n" else self.column
            if self.row == len(self.lines):
                self.lines.append("")
            if letter != "\n":
                self.put(letter)
        elif letter >= " ":
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + letter + line[self.column + 1:]
            self.column += 1

    def screen(self):
        return [line.rstrip() for line in self.lines[-self.rows:]]


class Recorder:
    def __init__(self, oarlock, folder, hurry):
        self.hurry, self.start, self.frames = hurry, time.monotonic(), []
        self.shells = {name: Shell(rows, folder, oarlock) for name, rows in ROWS.items()}

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            terminals = {shell.terminal: shell for shell in self.shells.values()}
            for ready in select.select(list(terminals), [], [], max(0, min(left, 0.05)))[0]:
                terminals[ready].read()
            self.note()
            if left <= 0:
                return

    def note(self):
        screens = {name: shell.screen() for name, shell in self.shells.items()}
        if not self.frames or self.frames[-1]["screens"] != screens:
            self.frames.append({"at": round(time.monotonic() - self.start, 2), "screens": screens})

    def pause(self, seconds):
        self.watch(0 if self.hurry else seconds)

    def see(self, name, text):
        give_up = time.monotonic() + PATIENCE
        while not re.search(text, "\n".join(self.shells[name].lines)):
            if time.monotonic() > give_up:
                sys.exit(f"{text!r} did not come; the {name} shell shows {self.shells[name].lines}")
            self.watch(0.05)

    def type(self, name, line):
        shell = self.shells[name]
        for piece in ([line] if self.hurry else line):
            os.write(shell.terminal, piece.encode())
            self.watch(0.02)
        self.pause(0.4)
        os.write(shell.terminal, b"\n")

    def close(self):
        for shell in self.shells.values():
            os.kill(shell.pid, signal.SIGKILL)
            os.waitpid(shell.pid, 0)
            os.close(shell.terminal)


def record(oarlock, hurry):
    with tempfile.TemporaryDirectory() as folder:
        deploy = pathlib.Path(folder, "deploy")
        deploy.write_text(DEPLOY)
        deploy.chmod(0o755)
        recorder = Recorder(oarlock, folder, hurry)
        try:
            for name in ROWS:
                recorder.see(name, r"(?m)^\$")
            recorder.type("first", 'oarlock run --reason "release 2.3" deploy/prod -- ./deploy')
            recorder.see("first", "(?m)^deploying")
            recorder.pause(0.8)
            recorder.type("second", "oarlock run -n deploy/prod -- ./deploy")
            recorder.see("second", r"busy: [\s\S]*\n\$")
            recorder.pause(2)
            recorder.type("second", "oarlock run deploy/prod -- ./deploy")
            recorder.see("second", "waiting: ")
            recorder.pause(3)
            pathlib.Path(folder, "finish").touch()
            recorder.see("first", r"deployed\n\$")
            recorder.see("second", r"deployed\n\$")
            recorder.pause(0.5)
        finally:
            recorder.close()
    return recorder.frames


def plain(frames):
    """The last screens, without what differs between two runs: numbers, times, where a line is broken."""
    text = "".join("".join(lines) for lines in frames[-1]["screens"].values())
    text = re.sub(r"\s", "", text).replace(f"heldby{socket.gethostname()}(", f"heldby{HOST}(")
    return re.sub(r"\d+", "0", re.sub(r"\d+(\.\d+)?(ms|s|min)\b", "T", text))


SIZE, LINE, LETTER, LEFT, BAR = 13, 19, 7.83, 14, 30
WIDTH = round(2 * LEFT + COLUMNS * LETTER)
LIGHT = {"ink": "#1f2328", "soft": "#59636e", "page": "#ffffff", "bar": "#eaeef2", "line": "#d1d9e0", "typed": "#0550ae"}
DARK = {"ink": "#e6edf3", "soft": "#9198a1", "page": "#0d1117", "bar": "#21262d", "line": "#3d444d", "typed": "#79c0ff"}
TITLE = "Two shells: the second one is refused, then waits, and runs its command when the first one has finished"
LAST = 4.0  # how long the end stays


def draw(frames):
    def colours(of):
        return (
            "text {{ fill: {ink} }} .soft {{ fill: {soft} }} .typed {{ fill: {typed} }} .page {{ fill: {page} }} "
            ".bar {{ fill: {bar} }} .frame {{ stroke: {line}; fill: none }}"
        ).format(**of)

    total = frames[-1]["at"] + LAST
    spans = {}  # (shell, row, text): [from, to] in which it is shown
    for frame, following in zip(frames, [*frames[1:], {"at": total}]):
        for shell, lines in frame["screens"].items():
            for row, text in enumerate(lines):
                shown = spans.setdefault((shell, row, text), [])
                if shown and shown[-1][1] == frame["at"]:
                    shown[-1][1] = following["at"]
                else:
                    shown.append([frame["at"], following["at"]])
    shapes, rules, top = [], {}, 8
    for shell, rows in ROWS.items():
        height = BAR + rows * LINE + 12
        shapes += [
            f'<rect x="4" y="{top}" width="{WIDTH - 8}" height="{height}" rx="7" class="page"/>',
            f'<path d="M4 {top + BAR} v{7 - BAR} q0 -7 7 -7 h{WIDTH - 22} q7 0 7 7 v{BAR - 7} z" class="bar"/>',
            f'<rect x="4" y="{top}" width="{WIDTH - 8}" height="{height}" rx="7" class="frame"/>',
            f'<text x="{LEFT}" y="{top + 20}" class="soft">{shell} shell</text>',
        ]
        for (where, row, text), shown in spans.items():
            if where != shell or not text:
                continue
            y = top + BAR + 18 + row * LINE
            steps = [step for start, end in shown for step in (f"{start / total:.2%}", f"{end / total:.2%}")]
            key = "k" + "-".join(step[:-1].replace(".", "_") for step in steps)
            words = "".join(
                f"{step} {{ visibility: {'hidden' if number % 2 else 'visible'} }} " for number, step in enumerate(steps)
            )
            rules[key] = f"@keyframes {key} {{ 0% {{ visibility: hidden }} {words}}}"
            final = " end" if shown[-1][1] == total else ""
            style = "typed" if text.startswith("$") else "out"
            shapes.append(
                f'<text x="{LEFT}" y="{y}" class="l {style}{final}" xml:space="preserve" '
                f'style="animation-name: {key}">{escape(text)}</text>'
            )
        top += height + 10
    css = [
        f'text {{ font: {SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }}',
        colours(LIGHT),
        f"@media (prefers-color-scheme: dark) {{ {colours(DARK)} }}",
        f".l {{ visibility: hidden; animation: {total:.2f}s step-end infinite }} .end {{ visibility: visible }}",
        "@media (prefers-reduced-motion: reduce) { .l { animation: none } }",
        *rules.values(),
    ]
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{TITLE}">'
    return "\n".join([opening, f"<title>{TITLE}</title>", "<style>", *css, "</style>", *shapes, "</svg>", ""])


def main(arguments):
    match arguments:
        case ["--record", oarlock]:
            frames = record(pathlib.Path(oarlock).resolve(), hurry=False)
            # A spinner moves ten times a second: two are enough for a picture.
            kept = [frame for number, frame in enumerate(frames) if frame is frames[-1]
                    or frames[number + 1]["at"] - frame["at"] >= 0.3 or number % 4 == 0]
            FILE.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n", encoding="utf-8")
        case ["--check", oarlock]:
            now, then = plain(record(pathlib.Path(oarlock).resolve(), hurry=True)), plain(json.loads(FILE.read_text()))
            sys.exit(f"the shells show\n{now}\nand the picture\n{then}\nrecord it again" if now != then else 0)
        case ["--print"]:
            return sys.stdout.buffer.write(draw(json.loads(FILE.read_text())).encode())
        case [] | ["--draw"]:
            pass
        case _:
            sys.exit(__doc__)
    FILE.with_suffix(".svg").write_text(draw(json.loads(FILE.read_text())), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

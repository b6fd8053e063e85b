"""Runs the program of the page for Python as it is written there."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

from conftest import Store

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_program_of_the_page_runs(store: Store) -> None:
    program = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    for shown, ours in [("redis://localhost", store.url), ("deploy/prod", store.name())]:
        assert shown in program
        program = program.replace(shown, ours)
    left, written = [True, True, False], []

    async def work(fence: int) -> None:
        written.append(fence)

    names: dict[str, Any] = {
        "row": 7,
        "work": work,
        "work_is_left": lambda: left.pop(0),
        "write": lambda row, fence: written.append(fence),
    }
    exec(compile("async def main():\n" + textwrap.indent(program, "    "), str(PAGE), "exec"), names)
    asyncio.run(names["main"]())
    first, again, later = written
    assert first == again < later, "two writes under one lock, then one under the next"

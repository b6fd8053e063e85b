#!/usr/bin/env python3
"""A preprocessor of mdBook, named in book.toml: makes the links of the pages work in the book.

On GitHub a relative link may lead to a file outside of docs/, which the book does not have: there it leads to the
repository. mdBook calls each README.md index.html, and has a page of contents, without anchors, instead of SUMMARY.md.
"""
import json
import posixpath
import re
import sys

REPOSITORY = "https://github.com/oarlock/oarlock/blob/main/"


def in_the_book(page, target):
    """Where a link of `page` to `target` leads in the book."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    if not path.startswith("docs/"):
        return REPOSITORY + path
    return re.sub(r"SUMMARY\.md(#.*)?$", "toc.html", re.sub(r"README\.md($|#)", r"index.md\1", target))


def mend(page, text):
    def link(found):
        return f"]({in_the_book(page, found[1])})"

    fenced, lines = False, []
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            # The parts between backquotes are code.
            parts = line.split("`")
            parts[::2] = [re.sub(r"\]\(([^)\s]+)\)", link, part) for part in parts[::2]]
            line = "`".join(parts)
        lines.append(line)
    return "\n".join(lines)


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["source_path"]:
                chapter["content"] = mend(chapter["source_path"], chapter["content"])
            walk(chapter["sub_items"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _context, book = json.load(sys.stdin)
    walk(book.get("items") or book.get("sections"))
    json.dump(book, sys.stdout)

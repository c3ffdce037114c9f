#!/usr/bin/env python3
"""What run.sh needs beside measurements: pairs of a family, a family with other plan books, a data file in two parts."""

import argparse
import json
from pathlib import Path

from lines import read_lines, write_lines


def print_pairs(options) -> None:
    """sender:receiver of every plan book."""
    content = json.loads(options.family.read_text())
    for relative in content["plan_books"]:
        book = json.loads((options.family.parent / relative).read_text())
        print(f"{book['sender']['name']}:{book['receiver']['name']}")


def write_family(options) -> None:
    """The same models, more if wanted, with these plan books; all paths absolute."""
    content = json.loads(options.family.read_text())
    for member in [content["base"], *content.get("variants", [])]:
        for key in ("path", "adapter"):
            if key in member:
                member[key] = str((options.family.parent / member[key]).resolve())
    for name, folder in (added.split("=", 1) for added in options.add):
        kind = "adapter" if (Path(folder) / "adapter_config.json").exists() else "path"
        content.setdefault("variants", []).append({"name": name, kind: str(Path(folder).resolve())})
    content["plan_books"] = [str(book.resolve()) for book in options.books]
    options.out.write_text(json.dumps(content, indent=2) + "\n")


def split(options) -> None:
    """The first rows for profiling, the rest for evaluation."""
    rows = read_lines(options.data)
    write_lines(options.first, rows[:options.count])
    write_lines(options.rest, rows[options.count:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    pairs = commands.add_parser("pairs", help=print_pairs.__doc__)
    pairs.add_argument("family", type=Path)
    pairs.set_defaults(run=print_pairs)
    family = commands.add_parser("family", help=write_family.__doc__)
    family.add_argument("family", type=Path)
    family.add_argument("out", type=Path)
    family.add_argument("books", type=Path, nargs="*")
    family.add_argument("--add", action="append", default=[], metavar="NAME=FOLDER", help="a further variant")
    family.set_defaults(run=write_family)
    parts = commands.add_parser("split", help=split.__doc__)
    parts.add_argument("data", type=Path)
    parts.add_argument("count", type=int)
    parts.add_argument("first", type=Path)
    parts.add_argument("rest", type=Path)
    parts.set_defaults(run=split)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()

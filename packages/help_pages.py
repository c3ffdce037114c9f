"""The program's own --help as data, for man page and completion: they say what the program says."""

import re
import subprocess
from dataclasses import dataclass, field


@dataclass
class Option:
    names: list  # ["-h", "--help"]
    value: str   # "TEXT [on]", empty for a flag
    text: str

    @property
    def choices(self):
        """The values of an option that takes one of a few: {on,off,reuse}."""
        match = re.search(r"\{([^{}]*)\}", self.value)
        return match[1].split(",") if match else []


@dataclass
class Command:
    path: list  # ["droidspeak", "bench", "reuse"]
    summary: str
    usage: str
    options: list = field(default_factory=list)
    positionals: list = field(default_factory=list)  # (name, text)
    commands: list = field(default_factory=list)
    footer: str = ""

    def all(self):
        yield self
        for command in self.commands:
            yield from command.all()


def run_help(program, path):
    return subprocess.run([program, *path[1:], "--help"], capture_output=True, text=True, check=True).stdout


COLUMN = 30  # where CLI11 begins the right column; when the left one is longer, on a line of its own


def read_entries(lines):
    """(left column, right column) of a section."""
    entries = []
    for line, following in zip(lines, [*lines[1:], ""]):
        is_text = line.startswith(" " * COLUMN)
        if is_text and entries:
            entries[-1][1] = (entries[-1][1] + " " + line.strip()).strip()
        elif following.startswith(" " * COLUMN):
            entries.append([line.strip(), ""])
        else:
            entries.append([line[:COLUMN].strip(), line[COLUMN:].strip()])
    return entries


def read_option(left, text):
    words = left.split(" ", 1)
    return Option(words[0].split(","), words[1] if len(words) > 1 else "", text)


def read_command(program, path):
    lines = run_help(program, path).splitlines()
    heads = {name: i for i, name in enumerate(lines) if re.match(r"^[A-Z][A-Za-z ]*:$", name)}
    usage = next(i for i, line in enumerate(lines) if line.startswith("Usage:"))
    command = Command(path, " ".join(lines[:usage]).strip(), lines[usage].split(":", 1)[1].strip())
    ends = sorted([*heads.values(), len(lines)])
    for name, begin in heads.items():
        end = next(i for i in ends if i > begin)
        section = lines[begin + 1:end]
        blank = next((i for i, line in enumerate(section) if not line.strip()), len(section))
        if any(line.strip() for line in section[blank:]):
            command.footer = " ".join(line.strip() for line in section[blank:] if line.strip())
        entries = read_entries(section[:blank])
        if name == "Options:":
            command.options = [read_option(left, text) for left, text in entries]
        elif name == "Positionals:":
            command.positionals = entries
        elif name == "Subcommands:":
            command.commands = [read_command(program, [*path, left]) for left, _ in entries]
    return command


def read_program(program):
    return read_command(str(program), ["droidspeak"])

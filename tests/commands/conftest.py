import json
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "clients"))

from server_process import build_folder, family_file  # noqa: E402


class Program:
    """The real program on a tiny family."""

    def __init__(self, family):
        self.family = family

    def run(self, *arguments):
        command = [str(build_folder() / "droidspeak"), *(str(part) for part in arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def start(self, *arguments):
        command = [str(build_folder() / "droidspeak"), *(str(part) for part in arguments), "--family", str(self.family), "--device", "cpu"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def json(self, *arguments):
        """What a command prints with --json on the family, and nothing else on stdout."""
        done = self.run(*arguments, "--family", self.family, "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return Program(family_file(tmp_path_factory.mktemp("family")))


@pytest.fixture
def program_with_books(tmp_path):
    """A family of its own, with plan books from its base to alpha and beta; tests may change its files."""
    maker = build_folder() / "bin" / "tiny_family"
    made = subprocess.run([maker, tmp_path / "family", "--plan-books"], check=True, capture_output=True, text=True)
    return Program(pathlib.Path(made.stdout.strip()))


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """Questions on documents, in the form of the QA data."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ["Plans and caches. ", "Senders read. ", "Receivers answer. ", "Layers recompute. "]
    lines = [{"id": str(i), "documents": [{"title": f"Note {i}", "text": "".join(words[(i + j * j) % 4] for j in range(24))}],
              "question": f"What is in note {i}?", "answers": ["caches"]} for i in range(24)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of some two hundred tokens."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Where one variant has read a context, the others start from its caches. " * 8)
    return path

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

    def json(self, *arguments):
        """What a command prints with --json on the family, and nothing else on stdout."""
        done = self.run(*arguments, "--family", self.family, "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return Program(family_file(tmp_path_factory.mktemp("family")))


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of some two hundred tokens."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Where one variant has read a context, the others start from its caches. " * 8)
    return path

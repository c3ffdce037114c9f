"""The program that came with this package."""

import os
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).parent / "bin" / "droidspeak"


def main() -> NoReturn:
    """Becomes the program: its process id, its signals and its exit status are this process's."""
    try:
        os.execv(PROGRAM, ["droidspeak", *sys.argv[1:]])
    except FileNotFoundError:
        sys.exit(f"{PROGRAM} is missing: this is the source tree, or the wheel was not installed whole")

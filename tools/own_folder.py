"""A folder that a script fills and may fill anew, without ever removing what somebody else put there."""
import fnmatch
import os
import sys
from pathlib import Path


def take(folder, own):
    """Makes `folder`, or removes what an earlier run left in it: files whose paths match one of the patterns `own`.
    Ends the program, with everything as it was, when there is anything else."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        sys.exit(f"{folder} is not a folder")
    files = [Path(parent) / name for parent, folders, names in os.walk(folder)
             for name in names + [name for name in folders if (Path(parent) / name).is_symlink()]]
    for file in files:
        path = file.relative_to(folder).as_posix()
        if file.is_symlink() or not any(fnmatch.fnmatchcase(path, pattern) for pattern in own):
            sys.exit(f"{folder} holds {path}, which this script has not made: name a new or empty folder")
    for file in files:
        file.unlink()
    folder.mkdir(parents=True, exist_ok=True)

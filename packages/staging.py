"""What wheel and Debian package have in common: version, machine, the program with its libraries."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import libraries

ROOT = Path(__file__).resolve().parent.parent


def version():
    """The one source is CMake's project()."""
    return re.search(r"project\(droidspeak VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def glibc():
    """(2, 36): programs built here run where it is this or newer."""
    return tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2])


def timestamp():
    """Of all files of a package: SOURCE_DATE_EPOCH, or the commit's, so that one commit makes one package."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    if shutil.which("git"):
        shown = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True)
        if shown.returncode == 0:
            return int(shown.stdout)
    return int((ROOT / "CMakeLists.txt").stat().st_mtime)


def machine():
    found = platform.machine()
    if found not in ("x86_64", "aarch64"):
        sys.exit(f"machine {found}: packages are made on x86_64 and aarch64")
    return found


def install_program(build, prefix, *, but=()):
    """bin/droidspeak, lib/droidspeak with what it brings; returns those libraries."""
    if not (build / "droidspeak").exists():
        sys.exit(f"{build / 'droidspeak'} is missing: `make build` makes it")
    subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--strip"], check=True, stdout=subprocess.DEVNULL)
    program = prefix / "bin" / "droidspeak"
    program.chmod(0o755)
    brought = libraries.carried(build / "droidspeak", but=but)
    libraries.copy_libraries(brought, prefix / "lib" / "droidspeak")
    return brought


def run(make_package):
    """The command line of wheel.py and deb.py: makes the package of a build folder in out/packages."""
    build = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build").resolve()
    package = make_package(build, ROOT / "out" / "packages")
    print(f"{package.relative_to(ROOT)}   {package.stat().st_size / 2**20:.1f} MiB")

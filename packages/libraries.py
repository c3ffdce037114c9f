"""Which shared libraries a package carries: those whose names differ between distributions, or that may be missing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The C and C++ run-time and zlib are on every machine that has a package manager.
EVERYWHERE = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libz)\.so(\..*)?$")
# One name and one ABI in Debian 12 and Ubuntu 24.04, and better with the distribution's security updates.
OPENSSL = re.compile(r"^lib(ssl|crypto)\.so\.3$")
CUDA = re.compile(r"^lib(cuda|cudart|cublas|cublasLt|cusolver|cudnn)\.so")
# Compiled in as headers (and Chart.js as the page's file): their notices travel too.
COMPILED_IN = ["nlohmann-json3-dev", "libcli11-dev", "libboost1.74-dev", "libboost1.83-dev", "libjs-chart.js"]


def needed(program):
    """Name -> file of all shared libraries that `program` loads, those of libraries included."""
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in shown.splitlines():
        match = re.match(r"\s*(\S+) => (.+?)(?: \(0x\w+\))?$", line)
        if not match:
            continue
        if match[2] == "not found":
            sys.exit(f"{program} needs {match[1]}, which is not on this machine")
        found[match[1]] = Path(match[2])
    return found


def carried(program, *, but=()):
    """Name -> file of those that a package must bring; `but`: patterns of more that it need not."""
    names = needed(program)
    gpu = sorted(name for name in names if CUDA.match(name))
    if gpu:
        sys.exit(f"{program} is a build with CUDA ({', '.join(gpu)}); packages are made of one without")
    return {name: file for name, file in names.items() if not any(kind.match(name) for kind in (EVERYWHERE, *but))}


def package_of(file):
    """The Debian package that a library came from, or None."""
    for path in (file, file.resolve()):
        shown = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if shown.returncode == 0:
            return shown.stdout.split(":")[0]
    return None


def copy_libraries(libraries, folder):
    folder.mkdir(parents=True)
    for name, file in libraries.items():
        shutil.copyfile(file, folder / name)
        (folder / name).chmod(0o644)
        subprocess.run(["strip", "--strip-unneeded", folder / name], check=True)


def copy_notices(libraries, folder):
    """The licences of what is carried and of what is compiled in."""
    folder.mkdir(parents=True)
    packages = {package_of(file) for file in libraries.values()} - {None}
    for package in sorted(packages | set(COMPILED_IN)):
        notice = Path("/usr/share/doc") / package / "copyright"
        if notice.exists():
            shutil.copyfile(notice, folder / f"{package}.txt")
    for source in ROOT.glob(".cache/xgrammar/source-*"):
        for notice in ("LICENSE", "NOTICE"):
            shutil.copyfile(source / notice, folder / f"xgrammar-{notice}.txt")
        shutil.copyfile(source / "3rdparty/dlpack/LICENSE", folder / "dlpack.txt")
        header = (source / "3rdparty/picojson/picojson.h").read_text()
        (folder / "picojson.txt").write_text(header[:header.index("*/") + 2] + "\n")

#!/usr/bin/env python3
"""Makes out/packages/droidspeak-VERSION-py3-none-manylinux_X_Y_MACHINE.whl from a build: the Python package of python/,
the program inside it with the libraries that it brings, `droidspeak` on the path.   wheel.py [BUILD]"""

import base64
import csv
import hashlib
import io
import shutil
import tempfile
import time
import zipfile
from pathlib import Path

import libraries
import staging

METADATA = """\
Metadata-Version: 2.1
Name: droidspeak
Version: {version}
Summary: Serves the fine-tuned variants of one base LLM; each starts from the caches of the others
License: Apache-2.0
Requires-Python: >=3.9
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{readme}"""
ENTRY_POINTS = "[console_scripts]\ndroidspeak = droidspeak.program:main\n"


def tag():
    major, minor = staging.glibc()
    return f"py3-none-manylinux_{major}_{minor}_{staging.machine()}"


def fill(folder, build, version):
    """All that the wheel holds, as files."""
    package = folder / "droidspeak"
    shutil.copytree(staging.ROOT / "python" / "droidspeak", package, ignore=shutil.ignore_patterns("__pycache__"))
    brought = staging.install_program(build, package)
    info = folder / f"droidspeak-{version}.dist-info"
    info.mkdir()
    readme = (staging.ROOT / "python" / "README.md").read_text()
    (info / "METADATA").write_text(METADATA.format(version=version, readme=readme))
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: droidspeak\nRoot-Is-Purelib: false\nTag: {tag()}\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    shutil.copyfile(staging.ROOT / "LICENSE", info / "LICENSE")
    libraries.copy_notices(brought, info / "notices")


def record(files, folder, name):
    """The list of all files with their digests."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for file in files:
        data = file.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([file.relative_to(folder).as_posix(), f"sha256={digest}", len(data)])
    rows.writerow([name, "", ""])
    return text.getvalue()


def pack(folder, wheel, version):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    name = f"droidspeak-{version}.dist-info/RECORD"
    when = time.gmtime(max(staging.timestamp(), 315532800))[:6]  # zip files begin in 1980
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        def add(path, data, mode):
            info = zipfile.ZipInfo(path, when)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (0o100000 | mode) << 16
            archive.writestr(info, data)

        for file in files:
            mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
            add(file.relative_to(folder).as_posix(), file.read_bytes(), mode)
        add(name, record(files, folder, name), 0o644)


def make_wheel(build, out):
    out.mkdir(parents=True, exist_ok=True)
    version = staging.version()
    wheel = out / f"droidspeak-{version}-{tag()}.whl"
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), build, version)
        pack(Path(folder), wheel, version)
    return wheel


if __name__ == "__main__":
    staging.run(make_wheel)

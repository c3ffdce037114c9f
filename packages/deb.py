#!/usr/bin/env python3
"""Makes out/packages/droidspeak_VERSION_ARCHITECTURE.deb from a build: program, service, user, configuration, man page,
completion. One package for every distribution with this machine's C library or a newer one.   deb.py [BUILD]"""

import gzip
import os
import re
import subprocess
import tempfile
from pathlib import Path

import completion
import libraries
import man_page
import staging

FORMS = Path(__file__).resolve().parent / "debian"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def gcc_major():
    shown = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return re.match(r"\d+", shown)[0]


def place(text, path, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


def place_files(root, build):
    """What is installed, but for the package's own records."""
    brought = staging.install_program(build, root / "usr", but=[libraries.OPENSSL])
    program = build / "droidspeak"
    documents = root / "usr" / "share" / "doc" / "droidspeak"
    libraries.copy_notices(brought, documents / "notices")
    pack = lambda text: gzip.compress(text.encode(), 9, mtime=staging.timestamp())  # noqa: E731
    place(pack(man_page.write(program)), root / "usr/share/man/man1/droidspeak.1.gz")
    place(completion.write(program), root / "usr/share/bash-completion/completions/droidspeak")
    place(pack((staging.ROOT / "CHANGELOG.md").read_text()), documents / "changelog.gz")
    place((staging.ROOT / "LICENSE").read_text(), documents / "copyright")
    place((FORMS / "droidspeak.service").read_text(), root / "usr/lib/systemd/system/droidspeak.service")
    place((FORMS / "droidspeak.conf").read_text(), root / "etc/droidspeak/droidspeak.conf")


def installed_size(root):
    """In KiB, as dpkg counts."""
    return sum((path.stat().st_size + 1023) // 1024 for path in root.rglob("*") if path.is_file())


def place_records(root):
    values = {"VERSION": staging.version(), "ARCHITECTURE": ARCHITECTURES[staging.machine()], "SIZE": installed_size(root),
              "GLIBC": ".".join(map(str, staging.glibc())), "GCC": gcc_major()}
    control = (FORMS / "control").read_text()
    for name, value in values.items():
        control = control.replace(f"@{name}@", str(value))
    place(control, root / "DEBIAN" / "control")
    place("/etc/droidspeak/droidspeak.conf\n", root / "DEBIAN" / "conffiles")
    for script in ("postinst", "prerm", "postrm"):
        place((FORMS / script).read_text(), root / "DEBIAN" / script, 0o755)
    sums = subprocess.run("find usr -type f -print0 | sort -z | xargs -0 md5sum", shell=True, cwd=root, check=True,
                          capture_output=True, text=True).stdout
    place(sums, root / "DEBIAN" / "md5sums")


def make_deb(build, out):
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"droidspeak_{staging.version()}_{ARCHITECTURES[staging.machine()]}.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        os.umask(0o022)
        root.mkdir()
        place_files(root, build)
        place_records(root)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(staging.timestamp())}
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package], check=True,
                       stdout=subprocess.DEVNULL, env=environment)
    return package


if __name__ == "__main__":
    staging.run(make_deb)

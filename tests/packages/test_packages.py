"""The form of wheel and Debian package. What they do on bare machines: tests/packages/run."""

import base64
import csv
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packages"))

import completion  # noqa: E402
import deb  # noqa: E402
import help_pages  # noqa: E402
import libraries  # noqa: E402
import man_page  # noqa: E402
import staging  # noqa: E402
import wheel  # noqa: E402

BUILD = pathlib.Path(os.environ.get("DROIDSPEAK_BUILD", ROOT / "build"))
PROGRAM = BUILD / "droidspeak"


@pytest.fixture(scope="module")
def program():
    return help_pages.read_program(PROGRAM)


def output(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, **options).stdout


# Version


def built_commit(source, tmp_path, **environment):
    """What a build of these sources would call its commit."""
    made = tmp_path / "commit.cpp"
    made.unlink(missing_ok=True)
    cmake = shutil.which("cmake")
    output(cmake, f"-DSOURCE={source}", f"-DOUTPUT={made}", "-P", ROOT / "cmake" / "commit.cmake", env={**os.environ, **environment})
    return re.search(r'"(.*)"', made.read_text())[1]


def test_commit_comes_from_environment_archive_or_nowhere(tmp_path):
    (tmp_path / "cmake").mkdir()
    archived = tmp_path / "cmake" / "archived_commit.txt"
    archived.write_text("$Format:%H$\n")
    assert built_commit(tmp_path, tmp_path) == "unknown"
    archived.write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert built_commit(tmp_path, tmp_path) == "0123456789ab"
    assert built_commit(tmp_path, tmp_path, PATH="/nonexistent") == "0123456789ab", "without git"
    assert built_commit(tmp_path, tmp_path, DROIDSPEAK_COMMIT="fedcba987654") == "fedcba987654"
    assert built_commit(tmp_path, tmp_path, DROIDSPEAK_COMMIT='"; system("') == "unknown"


def test_commit_is_gits_where_there_is_history(tmp_path):
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake" / "archived_commit.txt").write_text("$Format:%H$\n")
    output("git", "init", "-q", tmp_path)
    output(*git, "add", "cmake")
    output(*git, "commit", "-q", "-m", "first")
    commit = output(*git, "rev-parse", "--short=12", "HEAD").strip()
    assert built_commit(tmp_path, tmp_path) == commit
    (tmp_path / "cmake" / "archived_commit.txt").write_text("changed\n")
    assert built_commit(tmp_path, tmp_path) == commit + "+changes"


def test_packages_need_no_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert staging.timestamp() > 0


# Help


def test_help_is_read_whole(program):
    """Every line of an option or a command is in the data."""
    for command in program.all():
        lines = help_pages.run_help(PROGRAM, command.path).splitlines()
        named = [line.split()[0].split(",")[-1] for line in lines if line.startswith("  -")]
        assert named == [option.names[-1] for option in command.options], command.path
        assert all(option.text for option in command.options), command.path
        assert command.summary and command.usage.startswith("droidspeak")


def test_all_commands_are_found(program):
    paths = {" ".join(command.path[1:]) for command in program.all()}
    assert {"serve", "generate", "bench reuse", "family init", "supported"} <= paths


def test_choices_are_found(program):
    [serve] = [command for command in program.commands if command.path[-1] == "serve"]
    [sharing] = [option for option in serve.options if option.names == ["--sharing"]]
    assert sorted(sharing.choices) == ["off", "on", "reuse"]


def test_man_page_has_every_command_and_option(program):
    page = man_page.write(PROGRAM).replace("\\-", "-")
    assert page.startswith(".TH DROIDSPEAK 1 ") and staging.version() in page.splitlines()[0]
    for command in program.all():
        assert len(command.path) == 1 or f'.SS "{" ".join(command.path[1:])}"' in page
        for option in command.options:
            assert f"\\fB{option.names[-1]}\\fR" in page
    variables = page.split(".SH ENVIRONMENT")[1].split(".SH")[0]
    named = {name for command in program.all() for option in command.options
             for name in re.findall(r"(?:Env:|\$)(DROIDSPEAK_\w+)", option.value + option.text)}
    assert "DROIDSPEAK_REMOTE_CACHE" in named and all(name in variables for name in named)


def complete(script, *words):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    return output("bash", "-c", f'. "$0"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _droidspeak; echo "${{COMPREPLY[@]}}"', script).split()


def test_completion_completes(tmp_path):
    script = tmp_path / "completion"
    script.write_text(completion.write(PROGRAM))
    assert complete(script, "droidspeak", "ser") == ["serve"]
    assert complete(script, "droidspeak", "serve", "--api-k") == ["--api-key", "--api-key-file"]
    assert complete(script, "droidspeak", "bench", "reu") == ["reuse"]
    assert "--tokens" in complete(script, "droidspeak", "bench", "reuse", "--to")
    assert complete(script, "droidspeak", "serve", "--sharing", "re") == ["reuse"]
    assert complete(script, "droidspeak", "serve", "--family", "fam") == [], "files are bash's own matter"


# Wheel


@pytest.fixture(scope="module")
def made_wheel(tmp_path_factory):
    return wheel.make_wheel(BUILD, tmp_path_factory.mktemp("wheel"))


def test_wheel_says_what_it_runs_on(made_wheel):
    major, minor = staging.glibc()
    assert made_wheel.name == f"droidspeak-{staging.version()}-py3-none-manylinux_{major}_{minor}_{staging.machine()}.whl"
    with zipfile.ZipFile(made_wheel) as archive:
        assert f"Tag: {made_wheel.name.split('-', 2)[2][:-4]}\n" in archive.read(f"droidspeak-{staging.version()}.dist-info/WHEEL").decode()


def test_wheels_record_is_right(made_wheel):
    with zipfile.ZipFile(made_wheel) as archive:
        record = archive.read(f"droidspeak-{staging.version()}.dist-info/RECORD").decode()
        rows = {name: digest for name, digest, _ in csv.reader(io.StringIO(record))}
        assert set(rows) == set(archive.namelist())
        for name, digest in rows.items():
            if not digest:
                continue
            right = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert digest == f"sha256={right}", name
        assert {"droidspeak/py.typed", "droidspeak/client.py", "droidspeak/bin/droidspeak"} <= set(rows)
        assert not any("__pycache__" in name for name in rows)


def test_wheel_brings_its_libraries_and_their_notices(made_wheel, tmp_path):
    with zipfile.ZipFile(made_wheel) as archive:
        archive.extractall(tmp_path)
    program = tmp_path / "droidspeak" / "bin" / "droidspeak"
    program.chmod(0o755)
    for name, file in libraries.needed(program).items():
        is_ours = file.resolve().is_relative_to(tmp_path)
        assert is_ours != bool(libraries.EVERYWHERE.match(name)), f"{name} is {file}"
    notices = {path.stem for path in (tmp_path / f"droidspeak-{staging.version()}.dist-info" / "notices").iterdir()}
    assert "libfmt9" in notices and "nlohmann-json3-dev" in notices


def test_wheel_installs_and_runs(made_wheel, tmp_path):
    output(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", tmp_path, made_wheel)
    shown = output(tmp_path / "bin" / "droidspeak", "--version", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert shown == output(PROGRAM, "--version")
    assert output(sys.executable, "-m", "droidspeak", "--version", cwd=tmp_path) == shown
    failed = subprocess.run([sys.executable, "-m", "droidspeak", "serve", "--no-such-option"], cwd=tmp_path, capture_output=True)
    assert failed.returncode == 2, "the program's own exit status"


def test_one_commit_makes_one_wheel(made_wheel, tmp_path):
    again = wheel.make_wheel(BUILD, tmp_path)
    assert again.read_bytes() == made_wheel.read_bytes()


def test_a_cuda_build_is_refused(monkeypatch):
    monkeypatch.setattr(libraries, "needed", lambda _: {"libc.so.6": pathlib.Path("/c"), "libcudart.so.13": pathlib.Path("/x")})
    with pytest.raises(SystemExit, match="libcudart"):
        libraries.carried(PROGRAM)


# Debian package


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deb")
    package = deb.make_deb(BUILD, folder)
    output("dpkg-deb", "-R", package, folder / "root")
    return package, folder / "root"


def test_control_names_what_the_program_needs(unpacked):
    package, root = unpacked
    fields = dict(re.findall(r"^(\S+): (.*)$", (root / "DEBIAN" / "control").read_text(), re.MULTILINE))
    assert fields["Version"] == staging.version() and "@" not in fields["Depends"]
    assert fields["Architecture"] == output("dpkg", "--print-architecture").strip()
    outside = {name for name in libraries.needed(root / "usr" / "bin" / "droidspeak") if not (root / "usr/lib/droidspeak" / name).exists()}
    for name in outside:
        assert libraries.EVERYWHERE.match(name) or libraries.OPENSSL.match(name), name
    assert package.name == f"droidspeak_{staging.version()}_{fields['Architecture']}.deb"


def test_package_has_its_parts(unpacked):
    _, root = unpacked
    assert (root / "DEBIAN" / "conffiles").read_text() == "/etc/droidspeak/droidspeak.conf\n"
    for script in ("postinst", "prerm", "postrm"):
        assert os.access(root / "DEBIAN" / script, os.X_OK)
        output("sh", "-n", root / "DEBIAN" / script)
    assert gzip.decompress((root / "usr/share/man/man1/droidspeak.1.gz").read_bytes()).startswith(b".TH")
    assert output(root / "usr" / "bin" / "droidspeak", "--version") == output(PROGRAM, "--version")
    names = {path.name for path in (root / "usr" / "lib" / "droidspeak").iterdir()}
    assert names and "libssl.so.3" not in names
    modes = {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()}
    assert modes <= {0o644, 0o755}


def test_a_deleted_configuration_does_not_stop_an_upgrade(tmp_path):
    """All but the script's own decisions is played: nothing of this machine is changed."""
    for name in ("getent", "useradd", "install", "deb-systemd-helper", "deb-systemd-invoke", "systemctl"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    for name in ("chgrp", "chmod"):
        (tmp_path / name).write_text('#!/bin/sh\ntest -e "$2"\n')
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    script = (deb.FORMS / "postinst").read_text().replace("/etc/droidspeak", str(tmp_path / "etc"))
    subprocess.run(["/bin/sh", "-c", script, "postinst", "configure", "0.1.0"], check=True, env={"PATH": str(tmp_path)})


def test_configuration_gives_the_unit_what_it_reads(unpacked, program):
    _, root = unpacked
    unit = (root / "usr/lib/systemd/system/droidspeak.service").read_text()
    conf = (root / "etc/droidspeak/droidspeak.conf").read_text()
    given = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', conf, re.MULTILINE))
    assert set(re.findall(r"\$\{?([A-Z_]+)", unit)) == set(given)
    [serve] = [command for command in program.commands if command.path[-1] == "serve"]
    known = {name for option in serve.options for name in option.names}
    assert {word for word in given["DROIDSPEAK_OPTIONS"].split() if word.startswith("--")} <= known
    assert "--host 127.0.0.1" in given["DROIDSPEAK_OPTIONS"], "on this machine only until somebody says otherwise"

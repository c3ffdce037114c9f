"""The developer scripts that judge the project."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(name):
    """A script of tools/ as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


# tools/check_skips

GOOGLETEST = """<testsuites><testsuite name="Cuda">
<testcase name="Runs" classname="Cuda"/>
<testcase name="Adds" classname="Cuda"><skipped message="a_test.cpp:11&#x0A;{reason}"/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite><testcase classname="test_page" name="test_tabs">
<skipped type="pytest.skip" message="{reason}">a.py:3: {reason}</skipped></testcase></testsuite></testsuites>"""


@pytest.mark.parametrize("form", [GOOGLETEST, PYTEST])
def test_skips_are_found_in_both_kinds_of_results(tmp_path, form):
    (tmp_path / "result.xml").write_text(form.format(reason="no CUDA device"))
    [(test, reason)] = load("check_skips").read_skips(tmp_path)
    assert test in ("Cuda.Adds", "test_page.test_tabs") and "no CUDA device" in reason


@pytest.mark.parametrize("form", [GOOGLETEST, PYTEST])
def test_a_skip_that_nobody_expects_is_refused(tmp_path, form):
    (tmp_path / "result.xml").write_text(form.format(reason="too tired"))
    done = subprocess.run([ROOT / "tools" / "check_skips", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "too tired" in done.stdout


def test_no_results_are_no_success(tmp_path):
    assert subprocess.run([ROOT / "tools" / "check_skips", tmp_path], capture_output=True).returncode != 0


def test_a_skip_is_expected_on_its_machine_only():
    text = "# a comment\n\nno CUDA device | no-gpu\n"
    read = load("check_skips").read_expected
    assert read(text, {"no-gpu": lambda: True}) == [("no CUDA device", True)]
    assert read(text, {"no-gpu": lambda: False}) == [("no CUDA device", False)]


def test_every_expected_skip_names_a_known_machine():
    tool = load("check_skips")
    assert tool.read_expected(tool.EXPECTED.read_text(), tool.MACHINES)


# tools/mutate


def test_statements_are_changed_whole_only():
    is_whole = load("mutate").is_whole_statement
    lines = ["void f() {\n", "  call(1,\n", "       2);\n", "  // why\n", "  x = 1;\n", "  y =\n", "      g(3);\n"]
    assert [number for number in (2, 3, 5, 7) if is_whole(lines, number)] == [5]


# What is committed


def test_python_requirements_name_their_versions():
    for file in ROOT.glob("t*/**/*requirements.txt"):
        for line in file.read_text().split():
            assert "==" in line or "~=" in line, f"{file}: {line}"

"""The developer scripts that judge the project."""

import importlib.machinery
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys

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
    assert read(text, {"no-gpu": lambda _: True}, "results") == [("no CUDA device", True)]
    assert read(text, {"no-gpu": lambda _: False}, "results") == [("no CUDA device", False)]


def test_every_expected_skip_names_a_known_machine():
    tool = load("check_skips")
    assert tool.read_expected(tool.EXPECTED.read_text(), tool.MACHINES, tool.ROOT / "out" / "tests" / "build")


def test_every_expected_skip_is_in_some_test():
    """A reason that nobody gives any more is a leftover."""
    sources = [path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*")
               if path.suffix in (".cpp", ".h", ".cu", ".py") and path.name != "test_tools.py"]
    tool = load("check_skips")
    for reason, _ in tool.read_expected(tool.EXPECTED.read_text(), tool.MACHINES, ROOT):
        assert any(reason in text for text in sources), reason


@pytest.mark.parametrize("cache,has_gpu,lacks", [
    ("DROIDSPEAK_CUDA:BOOL=ON", True, False), ("DROIDSPEAK_CUDA:BOOL=ON", False, True),
    ("DROIDSPEAK_CUDA:BOOL=OFF", True, True), (None, True, False), (None, False, True)])
def test_a_build_without_cuda_has_no_gpu(tmp_path, monkeypatch, cache, has_gpu, lacks):
    tool = load("check_skips")
    results = tmp_path / "out" / "tests" / "build-asan"
    results.mkdir(parents=True)
    if cache is not None:
        (tmp_path / "build-asan").mkdir()
        (tmp_path / "build-asan" / "CMakeCache.txt").write_text(f"A:BOOL=ON\n{cache}\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool.os.path, "exists", lambda path: has_gpu)
    assert tool.lacks_gpu(results) == lacks


# tools/mutate


def test_statements_are_changed_whole_only():
    is_whole = load("mutate").is_whole_statement
    lines = ["void f() {\n", "  call(1,\n", "       2);\n", "  // why\n", "  x = 1;\n", "  y =\n", "      g(3);\n"]
    assert [number for number in (2, 3, 5, 7) if is_whole(lines, number)] == [5]


PROJECT = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES CXX)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
enable_testing()
add_subdirectory(src/store)
"""
MODULE = """add_library(droidspeak_store STATIC sum.cpp)
if(store IN_LIST DROIDSPEAK_APART)
  set_target_properties(droidspeak_store PROPERTIES UNITY_BUILD OFF)
endif()
add_executable(store_test sum_test.cpp)
target_link_libraries(store_test PRIVATE droidspeak_store)
add_test(NAME store_test COMMAND store_test)
set_tests_properties(store_test PROPERTIES LABELS unit)
"""
SUM = """int sum_below(int end) {
  int sum = 0;
  for (int i = 0; i < end; ++i) {
    sum += i;
  }
  sum += 0;
  return sum;
}
"""
SUM_TEST = "int sum_below(int);\nint main() { return sum_below(4) == 6 ? 0 : 1; }\n"


@pytest.fixture
def mutate(tmp_path, monkeypatch):
    """The script on a project of one module, one function and one test."""
    tool = load("mutate")
    (tmp_path / "src" / "store").mkdir(parents=True)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    for name, text in {"CMakeLists.txt": MODULE, "sum.cpp": SUM, "sum_test.cpp": SUM_TEST}.items():
        (tmp_path / "src" / "store" / name).write_text(text)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"):
        (tmp_path / name).touch()
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "OUT", tmp_path / "out")
    monkeypatch.setattr(tool, "SOURCE_FOLDERS", ["src"])
    monkeypatch.setattr(tool, "MIN_TEST_SECONDS", 2)
    return tool


def change(line, after):
    return {"file": "src/store/sum.cpp", "line": line, "before": SUM.splitlines()[line - 1].strip(), "after": after, "text": after + "\n"}


def test_mutants_are_killed_survive_or_do_not_count(mutate, tmp_path):
    sample = [change(4, "sum -= i;"), change(6, "sum -= 0;"), change(2, "int sum = nothing;"), change(3, "for (int i = 0; i < end; i = 0) {")]
    mutate.check_sources(sample)
    build = mutate.Build(tmp_path / "build", ["unit"], [], 1)
    results, num_invalid = mutate.run_sample(build, sample, 3, 1)
    assert [result["result"] for result in results] == ["killed", "survived", "killed"] and num_invalid == 1
    assert results[2]["by"] == "store_test: does not end"
    assert mutate.report({"seed": 1, "lines": 4}, results, num_invalid, 10) == 1, "a third survives"
    assert mutate.report({"seed": 1, "lines": 4}, results, num_invalid, 40) == 0
    assert "src/store/sum.cpp:6" in (tmp_path / "out" / "survivors.md").read_text()
    assert (tmp_path / "src" / "store" / "sum.cpp").read_text() == SUM, "the tree itself stays as it is"


FAILING_TEST = """#include <cstdio>
#include <cstring>
int sum_below(int);
int main(int count, char** words) {
  bool is_left_out = false;
  for (int i = 1; i < count; ++i) is_left_out = is_left_out || std::strcmp(words[i], "--gtest_filter=-Sum.IsWrong") == 0;
  if (!is_left_out) std::puts("[  FAILED  ] Sum.IsWrong (0 ms)");
  return is_left_out && sum_below(4) == 6 ? 0 : 1;
}
"""


def test_tests_that_fail_without_any_change_are_left_out_one_by_one(mutate, tmp_path):
    (tmp_path / "src" / "store" / "sum_test.cpp").write_text(FAILING_TEST)
    build = mutate.Build(tmp_path / "build", ["unit"], [], 1)
    assert build.failing == {"store_test": ["Sum.IsWrong"]}
    results, _ = mutate.run_sample(build, [change(4, "sum -= i;"), change(6, "sum -= 0;")], 2, 1)
    assert [result["result"] for result in results] == ["killed", "survived"]


def test_a_run_that_is_cut_off_goes_on_at_the_next_call(mutate, tmp_path):
    sample = [change(6, "sum -= 0;"), change(4, "sum -= i;"), change(2, "int sum = 1;")]
    build = mutate.Build(tmp_path / "build", ["unit"], [], 1)
    results, _ = mutate.run_sample(build, sample, 1, 1)
    assert [result["result"] for result in results] == ["survived"]
    build.clock = mutate.Clock(0)
    results, _ = mutate.run_sample(build, sample, 3, 1)
    assert len(results) == 1, "nothing new is begun without time"
    build.clock = mutate.Clock()
    results, _ = mutate.run_sample(build, sample, 3, 1)
    assert [result["result"] for result in results] == ["survived", "killed", "killed"]
    with pytest.raises(mutate.OutOfTime):
        mutate.Build(tmp_path / "other", ["unit"], [], 1, clock=mutate.Clock(0))


ACCIDENT_TEST = """#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
int sum_below(int);
int main() {
  std::string mark = std::string(std::getenv("TEST_TMPDIR") == nullptr ? "" : std::getenv("TEST_TMPDIR")) + "/mark";
  bool is_second = std::ifstream(mark).good();
  std::ofstream(mark) << "here";
  if (std::getenv("TEST_TMPDIR") != nullptr && !is_second) {
    std::puts("[  FAILED  ] Sum.FailsOnce (0 ms)");
    return 1;
  }
  return sum_below(4) == 6 ? 0 : 1;
}
"""


def test_a_test_that_fails_only_once_kills_nothing(mutate, tmp_path):
    (tmp_path / "src" / "store" / "sum_test.cpp").write_text(ACCIDENT_TEST)
    build = mutate.Build(tmp_path / "build", ["unit"], [], 1)
    results, _ = mutate.run_sample(build, [change(4, "sum -= i;"), change(6, "sum -= 0;")], 2, 1)
    assert [result["result"] for result in results] == ["killed", "survived"]


def test_a_sample_of_other_sources_is_refused(mutate):
    with pytest.raises(SystemExit, match="sum.cpp:4 is no longer"):
        mutate.check_sources([{**change(4, ";"), "before": "sum += 2 * i;"}])


# What is committed


def test_python_requirements_name_their_versions():
    for file in ROOT.glob("t*/**/*requirements.txt"):
        for line in file.read_text().split():
            assert "==" in line or "~=" in line, f"{file}: {line}"


# tools/make_random_gguf.py, tools/own_folder.py

def make_gguf(folder):
    command = [sys.executable, ROOT / "tools/make_random_gguf.py", "--shape", "tiny", "--type", "q4_0", "--vocab-size", "320",
               "--out", folder]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_random_model_is_made_anew_in_its_own_folder(tmp_path):
    out = tmp_path / "some" / "model"
    for _ in range(2):
        made = make_gguf(out)
        assert made.returncode == 0, made.stderr
        assert sorted(path.name for path in out.iterdir()) == ["base.gguf", "family.json"]


@pytest.mark.parametrize("other", ["letters.txt", "base.gguf/notes", "photos/base.gguf"])
def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path, other):
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_text("mine")
    (tmp_path / "family.json").write_text("mine too")
    made = make_gguf(tmp_path)
    assert made.returncode != 0 and other in made.stderr and "new or empty folder" in made.stderr
    assert (tmp_path / other).read_text() == "mine"
    assert (tmp_path / "family.json").read_text() == "mine too"


def test_what_a_link_leads_to_is_left_alone(tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "out"
    for folder in (kept, out):
        folder.mkdir()
    (kept / "family.json").write_text("mine")
    for link, target in [("family.json", kept / "family.json"), ("base.gguf", kept)]:
        (out / link).symlink_to(target)
        assert make_gguf(out).returncode != 0
        (out / link).unlink()
    assert (kept / "family.json").read_text() == "mine"


# tools/cuda_code

def fat_binary(*entries):
    """As nvcc writes it; an entry is its kind, capability and flags."""
    body = b"".join(struct.pack("<HHIQ", kind, 0x101, 64, 8) + bytes(12) + struct.pack("<I", capability) + bytes(8)
                    + struct.pack("<I", flags) + bytes(20) + b"machines" for kind, capability, flags in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


COMPLETE = [(2, 80, 0), (2, 86, 0), (2, 89, 0), (2, 90, 1 << 20), (2, 100, 0), (1, 100, 0)]


def test_code_of_every_capability_is_found():
    tool = load("cuda_code")
    data = b"before" + fat_binary(*COMPLETE) + b"between" + fat_binary((1, 75, 0)) + b"\x50\xed\x55\xba"
    assert list(tool.entries(data)) == [tool.ALL, {"compute_75"}]


@pytest.mark.parametrize("without", range(len(COMPLETE)))
def test_a_file_that_lacks_code_is_refused(tmp_path, without):
    whole, partly = tmp_path / "whole.o", tmp_path / "partly.o"
    whole.write_bytes(fat_binary(*COMPLETE))
    partly.write_bytes(fat_binary(*COMPLETE) + fat_binary(*COMPLETE[:without], *COMPLETE[without + 1:]))
    run = lambda *files: subprocess.run([ROOT / "tools" / "cuda_code", "--all", *files], capture_output=True, text=True)
    assert run(whole).returncode == 0
    done = run(whole, partly)
    assert done.returncode == 1 and "MISSING" in done.stdout.splitlines()[1]


def test_a_file_without_code_is_refused(tmp_path):
    (tmp_path / "empty.o").write_bytes(b"\x7fELF")
    assert subprocess.run([ROOT / "tools" / "cuda_code", "--all", tmp_path / "empty.o"], capture_output=True).returncode == 1


# tools/check_architectures

def test_a_changed_header_is_found_however_far_it_is_included(tmp_path, monkeypatch):
    tool = load("check_architectures")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    (tmp_path / "src/ops").mkdir(parents=True)
    for name, text in {"a.cu": '#include "ops/b.h"\n', "b.h": '#include "ops/c.cuh"\n#include <vector>\n',
                       "c.cuh": '#include "ops/b.h"\n', "other.cu": ""}.items():
        (tmp_path / "src/ops" / name).write_text(text)
    known = {}
    assert tmp_path / "src/ops/c.cuh" in tool.included(tmp_path / "src/ops/a.cu", known)
    assert tool.included(tmp_path / "src/ops/other.cu", known) == {tmp_path / "src/ops/other.cu"}


def test_changed_files_come_first_and_untouched_ones_not_at_all(tmp_path, monkeypatch):
    tool = load("check_architectures")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "BUILD", tmp_path)
    monkeypatch.setattr(tool, "run", lambda *command: "src/ops/b.cu\nsrc/ops/h.cuh\n" if "diff" in command else "1234")
    (tmp_path / "src/ops").mkdir(parents=True)
    (tmp_path / "src/ops/h.cuh").write_text("")
    for name, text in {"a.cu": '#include "ops/h.cuh"\n', "b.cu": "", "c.cu": "", "d.cpp": ""}.items():
        (tmp_path / "src/ops" / name).write_text(text)
    entries = [{"file": str(tmp_path / "src/ops" / name)} for name in ("a.cu", "b.cu", "c.cu", "d.cpp")]
    (tmp_path / "compile_commands.json").write_text(json.dumps(entries))
    assert tool.files_to_compile("main") == ([entries[1]], [entries[0]])
    assert tool.files_to_compile(None) == (entries[:3], [])


@pytest.mark.parametrize("last_begin, expected", [(float("inf"), True), (0, False)])
def test_no_file_is_begun_when_the_time_is_up(tmp_path, monkeypatch, last_begin, expected):
    tool = load("check_architectures")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    entry = {"file": str(tmp_path / "a.cu"), "directory": str(tmp_path),
             "command": f"{sys.executable} -c 'import sys; open(sys.argv[2], \"w\")' -o out/a.o"}
    assert (tool.compile_one(entry, last_begin) == tmp_path / "out/a.o") is expected
    assert (tmp_path / "out/a.o").exists() is expected

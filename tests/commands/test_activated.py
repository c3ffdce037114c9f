"""The commands on an activated LoRA: the base in front of the invocation, exact reuse of the base's cache."""

import json
import pathlib
import shutil

import pytest
from conftest import Program

INVOCATION = "[judge]"


@pytest.fixture(scope="module")
def activated(program, tmp_path_factory):
    """The tiny family with alpha activated by a text; its tokens are bytes."""
    folder = pathlib.Path(shutil.copytree(pathlib.Path(program.family).parent, tmp_path_factory.mktemp("activated") / "family"))
    config = folder / "adapters" / "alpha" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"alora_invocation_tokens": list(INVOCATION.encode())}))
    family = folder / "family.json"
    family.write_text(json.dumps(json.loads(family.read_text()) | {"plan_books": []}))  # of the alpha that was
    return Program(family)


@pytest.fixture(scope="module")
def prompt(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    path.write_text(text.read_text() + INVOCATION + " What is said of caches here?")
    return path


def generate(program, model, *arguments):
    return program.json("generate", "--model", model, "--raw", "--max-tokens", 8, "--temperature", 0, *arguments)


def test_without_the_invocation_the_answer_is_the_bases(activated, text):
    plain = generate(activated, "base", "--prompt-file", text)["tokens"]
    assert generate(activated, "alpha", "--prompt-file", text)["tokens"] == plain
    assert generate(activated, "beta", "--prompt-file", text)["tokens"] != plain, "an adapter must matter for this test"


def test_generate_takes_the_bases_cache_exactly(activated, text, prompt):
    own = generate(activated, "alpha", "--prompt-file", prompt)
    assert own["tokens"] != generate(activated, "base", "--prompt-file", prompt)["tokens"]
    question = prompt.read_text()[len(text.read_text()):]
    for plan in ("auto", "reuse"):
        shared = generate(activated, "alpha", "--context-file", text, "--prompt", question, "--sender", "base", "--plan", plan)
        assert shared["tokens"] == own["tokens"]
        assert shared["plan"] == "reuse" and shared["reused_tokens"] >= 128 and not shared["translated"]


def test_score_behind_a_context_is_that_of_the_whole_text(activated, prompt, text):
    context = len(text.read_bytes())
    alone = activated.json("score", "--model", "alpha", "--file", prompt, "--logprobs")["logprobs"]
    base = activated.json("score", "--model", "base", "--file", prompt, "--logprobs")["logprobs"]
    # The invocation's first token is predicted by the base, its second by the adapter.
    assert alone[:context + 1] == base[:context + 1] and alone[context + 1] != base[context + 1]
    shared = activated.json("score", "--model", "alpha", "--file", prompt, "--context-tokens", context, "--sender", "base")
    assert shared["nll"] == pytest.approx(-sum(alone[context:]) / len(alone[context:]), abs=2e-3)
    assert shared["plan"] == "reuse"


@pytest.mark.parametrize(("arguments", "reason"), [
    (("--model", "alpha", "--sender", "base", "--plan", "0,1,2"), "expected auto, reuse or full"),
    (("--model", "alpha", "--sender", "beta"), 'takes caches of "base" only'),
    (("--model", "beta", "--sender", "alpha", "--plan", "reuse"), 'its caches are those of "base"'),
])
def test_other_senders_and_plans_are_refused(activated, text, arguments, reason):
    done = activated.run("generate", *arguments, "--context-file", text, "--prompt", "x", "--family", activated.family, "--device", "cpu")
    assert done.returncode == 1 and done.stdout == "" and reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("pair", [("base", "alpha"), ("alpha", "beta")])
def test_profile_has_nothing_to_measure(activated, rows, tmp_path, pair):
    done = activated.run("profile", "--sender", pair[0], "--receiver", pair[1], "--data", rows, "--out", tmp_path / "book.json",
                         "--family", activated.family, "--device", "cpu")
    assert done.returncode == 1 and "exactly, without a plan book" in done.stderr


def test_evaluate_finds_no_difference(activated, rows):
    found = activated.json("evaluate", "--sender", "base", "--receiver", "alpha", "--plans", "full;reuse;auto", "--data", rows,
                           "--limit", 2, "--max-tokens", 4)
    assert [row["plan"] for row in found["plans"]] == ["full", "reuse", "reuse"]
    assert all(row["kl"] < 1e-6 and row["agreement"] == 1 for row in found["plans"])
    done = activated.run("evaluate", "--sender", "base", "--receiver", "alpha", "--plans", "auto", "--data", rows, "--limit", 1, "--max-tokens", 1,
                         "--family", activated.family)
    assert done.returncode == 0 and "full prefill" not in done.stderr


def test_inspect_and_init_know_it(activated, tmp_path):
    alpha = pathlib.Path(activated.family).parent / "adapters" / "alpha"
    family = json.loads(activated.run("inspect", activated.family, "--json").stdout)
    tokens = {row["name"]: row.get("invocation_tokens") for row in family["variants"]}
    assert tokens == {"base": None, "alpha": list(INVOCATION.encode()), "beta": None}
    assert json.loads(activated.run("inspect", alpha, "--json").stdout)["invocation_tokens"] == list(INVOCATION.encode())
    made = activated.run("family", "init", alpha.parents[1] / "base", alpha, alpha.parent / "beta", "--out", tmp_path / "new", "--json")
    profiled = [command for command in json.loads(made.stdout)["next"] if "profile" in command]
    assert len(profiled) == 1 and "--receiver beta" in profiled[0]


def test_bench_measures_the_adapter(activated):
    rows = activated.json("bench", "reuse", "--model", "alpha", "--sender", "base", "--tokens", 128, "--repeats", 1)
    assert {row["plan"] for row in rows} == {"full", "reuse"}
    assert len(activated.json("bench", "prefill", "--model", "alpha", "--tokens", "64", "--repeats", 1)) == 1


def test_a_wrong_invocation_is_named(activated, tmp_path):
    family = pathlib.Path(shutil.copytree(pathlib.Path(activated.family).parent, tmp_path / "family")) / "family.json"
    config = family.parent / "adapters" / "alpha" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"alora_invocation_tokens": [320]}))
    done = activated.run("generate", "--family", family, "--model", "alpha", "--prompt", "x", "--device", "cpu")
    assert done.returncode == 1 and 'field "alora_invocation_tokens[0]" is 320: expected' in done.stderr

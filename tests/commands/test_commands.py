"""The commands as a script calls them: what they print with --json, and how they fail."""

import bisect
import json
import pathlib
import re
import shutil

import pytest


def test_tokens_of_a_file(program, text):
    tokens = program.json("tokenize", "--file", text)["tokens"]
    assert len(tokens) > 130 and all(isinstance(token, int) for token in tokens)


def test_generate_is_repeatable_and_says_what_it_did(program, text):
    arguments = ["generate", "--model", "base", "--prompt-file", text, "--raw", "--max-tokens", 6, "--temperature", 0]
    first, second = program.json(*arguments), program.json(*arguments)
    assert first["tokens"] == second["tokens"] and first["text"] == second["text"]
    assert first["plan"] == "full" and first["reused_tokens"] == 0
    assert first["prompt_tokens"] == len(program.json("tokenize", "--file", text)["tokens"])
    assert set(first["timings"]) >= {"ttft_ms", "load_ms", "prefill_ms", "decode_ms", "total_ms"}


def test_generate_from_a_senders_cache(program, text):
    own = ["generate", "--model", "base", "--context-file", text, "--prompt", "And then?", "--max-tokens", 6, "--temperature", 0]
    shared = program.json(*own, "--sender", "base", "--plan", "reuse")
    assert shared["plan"] == "reuse" and shared["reused_tokens"] > 0 and shared["timings"]["sender_ms"] > 0
    assert shared["tokens"] == program.json(*own)["tokens"], "a model's own cache changes nothing"


@pytest.mark.parametrize("plan", ["reuse", "reuse+10%", "0,1,2"])
def test_a_context_shorter_than_a_block_is_read_in_full_and_reported_so(program, text, tmp_path, plan):
    short = tmp_path / "short.txt"
    short.write_text("Hi")
    sharing = ["--model", "alpha", "--sender", "base", "--plan", plan]
    answer = program.json("generate", *sharing, "--context-file", short, "--prompt", "x", "--raw", "--max-tokens", 1)
    assert (answer["plan"], answer["reused_tokens"], answer["looked_at_tokens"], answer["translated"]) == ("full", 0, 0, False)
    score = program.json("score", *sharing, "--file", text, "--context-tokens", 10)
    assert (score["plan"], score["translated"]) == ("full", False)


def test_tokens_are_looked_at_where_the_prompt_fills_kv_memory(program, text, tmp_path):
    prompt = tmp_path / "prompt.txt"
    words = text.read_text()

    def num_tokens(length):
        prompt.write_text(words[:length])
        return len(program.json("tokenize", "--file", prompt)["tokens"])

    length = bisect.bisect_left(range(len(words)), 192, lo=1, key=num_tokens)
    assert num_tokens(length) == 192, "three blocks"
    ask = ["generate", "--model", "alpha", "--sender", "base", "--raw", "--prompt-file", prompt, "--max-tokens", 1]
    for memory in range(32, 256, 32):
        done = program.run(*ask, "--plan", "reuse", "--kv-memory", f"{memory}KiB", "--family", program.family, "--device", "cpu")
        if done.returncode == 0:
            break
    answer = program.json(*ask, "--plan", "reuse+10%", "--kv-memory", f"{memory}KiB")
    assert answer["prompt_tokens"] == 192 and answer["plan"] == "reuse+10%" and answer["looked_at_tokens"] > 0


def test_score_is_the_mean_of_its_logprobs(program, text):
    score = program.json("score", "--model", "base", "--file", text, "--logprobs")
    logprobs = score["logprobs"]
    assert len(logprobs) == score["tokens"] and logprobs[0] is None
    assert score["nll"] == pytest.approx(-sum(logprobs[1:]) / (len(logprobs) - 1), abs=1e-5)


@pytest.mark.parametrize("plan", [None, "full", "reuse", "0,1,2"])
def test_score_behind_a_context(program, text, plan):
    """The model's own cache, whatever the plan, gives the logprobs of plain scoring."""
    context = 100
    logprobs = program.json("score", "--model", "base", "--file", text, "--logprobs")["logprobs"]
    sharing = [] if plan is None else ["--sender", "base", "--plan", plan]
    behind = program.json("score", "--model", "base", "--file", text, "--context-tokens", context, *sharing)
    assert behind["nll"] == pytest.approx(-sum(logprobs[context:]) / (len(logprobs) - context), abs=2e-3)


def test_a_variant_with_a_wrong_adapter_is_named(program, tmp_path):
    family = pathlib.Path(shutil.copytree(pathlib.Path(program.family).parent, tmp_path / "family")) / "family.json"
    config = family.parent / "adapters" / "alpha" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 0}))
    done = program.run("generate", "--family", family, "--model", "alpha", "--prompt", "x", "--device", "cpu")
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert f'{family}: variant "alpha": {config}: field "r" is 0: expected an integer from 1 to 65536' in done.stderr


def test_bench_rows(program):
    prefill = program.json("bench", "prefill", "--model", "base", "--tokens", "64,128", "--repeats", 1)
    assert [row["tokens"] for row in prefill] == [64, 128] and all(row["tokens_per_second"] > 0 for row in prefill)
    assert all(row["threads"] > 0 for row in prefill)
    decode = program.json("bench", "decode", "--model", "base", "--batch", "1,3", "--tokens", 4)
    assert [row["batch"] for row in decode] == [1, 3] and all(row["tokens_per_second"] > 0 for row in decode)
    reuse = program.json("bench", "reuse", "--model", "alpha", "--sender", "base", "--plan", "0,1,2", "--tokens", "128", "--repeats", 1)
    assert {row["plan"] for row in reuse} == {"full", "reuse", "0,1,2"}
    assert all(row["ttft_ms_median"] > 0 and row["speedup"] > 0 for row in reuse)


def test_bench_serve_compares_arms(program_with_books, rows):
    found = program_with_books.json("bench", "serve", "--data", rows, "--contexts", 2, "--rates", 50, "--min-context", 64, "--max-context", 128,
                                    "--max-tokens", 2, "--arms", "off,droidspeak", "--slo-ms", 1000)
    assert [row["arm"] for row in found] == ["off", "droidspeak"]
    fields = {"arm", "rate", "ttft_ms_p50", "ttft_ms_p95", "tbt_ms_p50", "e2e_ms_p50", "throughput", "goodput"}
    assert all(set(row) >= fields for row in found)


def test_evaluate_compares_plans(program, rows, tmp_path):
    result = program.json("evaluate", "--sender", "base", "--receiver", "alpha", "--plans", "full;reuse", "--data", rows, "--limit", 2,
                          "--max-tokens", 4, "--rows", tmp_path / "rows.jsonl")
    assert result["n"] == 2 and [row["plan"] for row in result["plans"]] == ["full", "reuse"]
    assert result["plans"][0]["agreement"] == 1 and result["plans"][0]["kl"] == pytest.approx(0, abs=1e-6)
    each = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["plan"] for row in each] == ["full", "full", "reuse", "reuse"]
    for plan in result["plans"]:
        of_plan = [row for row in each if row["plan"] == plan["plan"]]
        for field in ("score", "kl", "gold_nll"):
            assert plan[field] == pytest.approx(sum(row[field] for row in of_plan) / 2)
        assert all(row["kl"] == pytest.approx(sum(row["token_kls"]) / len(row["token_kls"]), abs=1e-4) for row in of_plan)
        assert all(row["gold_nll"] > 0 for row in of_plan)


def rows_with_answers(tmp_path, rows, answers):
    """The first rows, with these answers."""
    lines = [json.loads(line) for line in rows.read_text().splitlines()[:len(answers)]]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line | {"answers": known}) + "\n" for line, known in zip(lines, answers)))
    return path


def test_a_row_without_answers_has_no_score(program, rows, tmp_path):
    flags = ["--sender", "base", "--receiver", "alpha", "--plans", "full;reuse", "--max-tokens", 4, "--metric", "edit_similarity",
             "--rows", tmp_path / "rows.jsonl"]
    found = program.json("evaluate", "--data", rows_with_answers(tmp_path, rows, [["caches"], [], [" a"], []]), *flags)
    each = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    for plan in found["plans"]:
        of_plan = [row for row in each if row["plan"] == plan["plan"]]
        assert [row["score"] is None for row in of_plan] == [False, True, False, True]
        assert [row["gold_nll"] is None for row in of_plan] == [False, True, False, True]
        assert plan["score"] == pytest.approx((of_plan[0]["score"] + of_plan[2]["score"]) / 2) and len(plan["ci95"]) == 2
        assert plan["kl"] == pytest.approx(sum(row["kl"] for row in of_plan) / 4)
    found = program.json("evaluate", "--data", rows_with_answers(tmp_path, rows, [[], []]), *flags)
    for plan in found["plans"]:
        assert [plan[field] for field in ("score", "ci95", "difference_ci95", "gold_nll")] == [None] * 4 and plan["kl"] >= 0
    shown = program.run("evaluate", "--family", program.family, "--data", tmp_path / "answers.jsonl", *flags)
    assert shown.returncode == 0 and "0.000..0.000" not in shown.stdout


def test_inspect_a_family(program):
    done = program.run("inspect", program.family, "--json")
    assert done.returncode == 0 and "base" in json.dumps(json.loads(done.stdout))


COMMANDS = ["serve", "generate", "score", "tokenize", "profile", "evaluate", "bench prefill", "bench decode", "bench reuse", "bench serve",
            "inspect", "family", "family init", "supported"]


def test_inspect_says_what_it_expects(program, tmp_path):
    (tmp_path / "notes").write_text("x")
    done = program.run("inspect", tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{tmp_path}: expected a cache folder" in done.stderr


def test_inspect_compares_an_adapters_rank_with_its_tensors(program, tmp_path):
    adapter = pathlib.Path(shutil.copytree(pathlib.Path(program.family).parent / "adapters" / "alpha", tmp_path / "alpha"))
    assert program.run("inspect", adapter).returncode == 0
    config = json.loads((adapter / "adapter_config.json").read_text())
    for fields in ({}, {"rank_pattern": {}}):
        (adapter / "adapter_config.json").write_text(json.dumps(config | fields | {"r": config["r"] + 1}))
        done = program.run("inspect", adapter)
        assert done.returncode == 1 and f"r of adapter_config.json is {config['r'] + 1}" in done.stderr
    for fields in ({"rank_pattern": {"q_proj": config["r"]}}, {"target_parameters": ["mlp.experts.down_proj"]}):
        (adapter / "adapter_config.json").write_text(json.dumps(config | fields | {"r": config["r"] + 1}))
        assert program.run("inspect", adapter).returncode == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(program, command):
    done = program.run(*command.split(), "--help")
    assert done.returncode == 0 and f"Example: droidspeak {command}" in done.stdout


@pytest.mark.parametrize("arguments, status, named", [
    (["generate", "--model", "nobody", "--prompt", "x"], 1, "nobody"),
    (["generate", "--model", "base", "--prompt", "x", "--sender", "base", "--plan", "9,1,2"], 1, "9,1,2"),
    (["generate", "--model", "base", "--prompt", "x", "--plan", "banana"], 2, "--plan banana: without --sender"),
    (["generate", "--model", "base", "--prompt", "x", "--plan", "reuse"], 2, "--plan reuse: without --sender"),
    (["generate", "--model", "base", "--prompt", "x", "--sender", "base", "--plan", "banana"], 1, "banana"),
    (["generate", "--model", "base", "--prompt", "x", "--stop", ""], 2, "--stop: an empty value; expected a text"),
    (["generate", "--model", "base", "--prompt", "x", "--cache-format", "int8"], 2, "--cache-format requires --cache-dir"),
    (["serve", "--cache-disk", "1GiB"], 2, "--cache-disk requires --cache-dir"),
    (["serve", "--remote-format", "raw"], 2, "--remote-format requires --remote-cache"),
    (["serve", "--share-between-keys"], 2, "--share-between-keys: there are no keys"),
    (["bench", "serve", "--data", "/nowhere/rows", "--seed", "99999999999999999999999"], 2, "--seed: 99999999999999999999999 is not"),
    (["generate", "--model", "base", "--prompt", "x", "--seed", "-1"], 2, "--seed: -1 is not 0 to 18446744073709551615"),
    (["generate", "--model", "base", "--prompt", "x", "--seed", "18446744073709551616"], 2, "--seed: 18446744073709551616 is not"),
    (["score", "--model", "base", "--file", pathlib.Path(__file__).parents[1] / "pytest.ini", "--plan", "0,1,2"], 2, "--plan 0,1,2: without --sender"),
    (["profile", "--sender", "base", "--receiver", "alpha", "--data", "/nowhere/rows", "--out", "/tmp"], 1, "--out /tmp is a folder"),
    (["score", "--model", "base", "--file", "/nowhere/text"], 1, "/nowhere/text"),
    (["tokenize", "--file", "/nowhere/text"], 1, "/nowhere/text"),
    (["bench", "prefill", "--model", "base", "--tokens", "99999999"], 1, "99999999"),
    (["bench", "decode", "--model", "base", "--batch", "64", "--kv-memory", "64KiB"], 1, "--kv-memory"),
    (["evaluate", "--sender", "base", "--receiver", "alpha", "--plans", "full", "--data", "/nowhere/rows"], 1, "/nowhere/rows"),
    (["generate", "--model", "base", "--prompt", "x", "--temperature", "hot"], 2, "hot"),
    (["generate", "--model", "base", "--prompt", "x", "--temperature", "nan"], 2, "nan"),
    (["serve", "--min-quality", "NaN"], 2, "NaN"),
    (["serve", "--max-connections", "0"], 2, "--max-connections: 0 is not a number above 0"),
    (["generate", "--max-model-len", "-1"], 2, "--max-model-len: -1 is not 0 or a number above it"),
    (["generate", "--no-such-flag"], 2, "--no-such-flag"),
    (["frobnicate"], 2, "frobnicate"),
])
def test_wrong_input_is_named_in_one_line(program, arguments, status, named):
    family = [] if arguments[0] == "frobnicate" else ["--family", program.family]
    done = program.run(*arguments, *family)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if named in line]
    assert len(errors) == 1 and not re.search(r"terminate called|Assertion", done.stderr), done.stderr


@pytest.mark.parametrize("flags", [[], ["--peer-listen", "127.0.0.1:0"]])
def test_a_host_in_fips_mode_is_refused_at_the_start(program, tmp_path, monkeypatch, flags):
    (tmp_path / "openssl.cnf").write_text("openssl_conf = all\n[all]\nalg_section = algorithms\n[algorithms]\ndefault_properties = fips=yes\n")
    (tmp_path / "secret").write_bytes(bytes(32))
    monkeypatch.setenv("OPENSSL_CONF", str(tmp_path / "openssl.cnf"))
    done = program.run("serve", "--family", program.family, "--device", "cpu", "--port", 0, "--remote-cache", "redis://127.0.0.1:1",
                       "--remote-secret-file", tmp_path / "secret", *flags)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "Poly1305" in done.stderr and "FIPS" in done.stderr

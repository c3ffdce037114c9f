"""Families made from files on a disk, and what is said of those that do not fit together."""

import json
import os
import pathlib
import shlex
import shutil
import urllib.request

import pytest
from server_process import Server

MODELS = pathlib.Path(__file__).resolve().parents[1] / "data" / "models"


@pytest.fixture
def parts(program, tmp_path):
    """A base and two adapters to make families of; tests may change them."""
    return pathlib.Path(shutil.copytree(pathlib.Path(program.family).parent, tmp_path / "parts"))


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def make(program, *arguments):
    done = program.run("family", "init", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(program, *arguments):
    done = program.run(*arguments)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    return done.stderr


def members(program, family, status):
    done = program.run("inspect", family, "--json")
    assert done.returncode == status, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)["variants"]}


def test_a_family_of_a_folder_and_adapters_can_be_used(program, parts, tmp_path):
    made = make(program, parts / "base", parts / "adapters" / "alpha", f"other={parts / 'adapters' / 'beta'}", "--out", tmp_path / "new")
    family = tmp_path / "new" / "family.json"
    assert pathlib.Path(made["family"]) == family
    assert made["content"] == json.loads(family.read_text())
    assert made["content"]["base"] == {"name": "base", "path": "../parts/base"}
    assert made["content"]["variants"] == [{"name": "alpha", "adapter": "../parts/adapters/alpha"},
                                           {"name": "other", "adapter": "../parts/adapters/beta"}]
    assert any(command.startswith("droidspeak profile") for command in made["next"])
    assert made["next"][-1] == f"droidspeak serve --family {family}"
    assert all(row["fits"] for row in members(program, family, 0).values())
    done = program.run("generate", "--family", family, "--model", "other", "--prompt", "x", "--max-tokens", 2, "--device", "cpu", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["prompt_tokens"] > 0


def test_the_name_of_a_family_is_utf8(program, parts, tmp_path):
    said = refusal(program, "family", "init", parts / "base", "--name", os.fsdecode(b"a\xff"), "--out", tmp_path / "new")
    assert "must be UTF-8" in said and not (tmp_path / "new").exists()


def test_a_relative_out_is_that_of_the_working_folder(program, parts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("family.json", "my/family.json"):
        make(program, parts / "base", parts / "adapters" / "alpha", "--out", out)
        assert all(row["fits"] for row in members(program, tmp_path / out, 0).values())


def test_plan_books_beside_are_taken(program_with_books, tmp_path):
    """Those of pairs of the family, where the next commands would write them."""
    parts = program_with_books.family.parent
    old = json.loads(program_with_books.family.read_text())
    plans = tmp_path / "new" / "plans"
    plans.mkdir(parents=True)
    for book in old["plan_books"]:
        for file in (parts / book).parent.glob(pathlib.Path(book).stem + "*"):
            shutil.copy(file, plans)
    (plans / "notes.json").write_text("{}")
    variants = [f"{entry['name']}={parts / entry['adapter']}" for entry in old["variants"]]
    made = make(program_with_books, f"base={parts / old['base']['path']}", *variants, "--out", tmp_path / "new")
    books = sorted(f"plans/{pathlib.Path(book).name}" for book in old["plan_books"])
    assert made["content"]["plan_books"] == books
    done = program_with_books.run("inspect", made["family"], "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["plan_books"]) == len(books)
    alone = make(program_with_books, f"base={parts / old['base']['path']}", "--out", tmp_path / "new" / "alone.json")
    assert "plan_books" not in alone["content"]


def test_plan_books_that_nothing_could_open_are_left_out(program_with_books, tmp_path):
    parts = program_with_books.family.parent
    old = json.loads(program_with_books.family.read_text())
    plans = tmp_path / "plans"
    plans.mkdir()
    good = json.loads((parts / old["plan_books"][0]).read_text())
    changes = {"good": {}, "layers": {"num_layers": 5}, "maps": {"maps": "nowhere.safetensors"}, "second": {}}
    for name, change in changes.items():
        (plans / f"{name}.json").write_text(json.dumps(good | {"maps": ""} | change))
    variants = [f"{entry['name']}={parts / entry['adapter']}" for entry in old["variants"]]
    done = program_with_books.run("family", "init", f"base={parts / old['base']['path']}", *variants, "--out", tmp_path, "--json")
    assert json.loads(done.stdout)["content"]["plan_books"] == ["plans/good.json"]
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert any("second.json is left out: there is another one for" in line for line in lines)
    assert any("layers.json is left out: num_layers is 5: the model has 4" in line for line in lines)
    assert any("maps.json is left out: " in line and "nowhere.safetensors" in line for line in lines)
    assert program_with_books.run("inspect", tmp_path / "family.json").returncode == 0


def test_adapters_in_gguf_are_members(program, tmp_path):
    shutil.copytree(MODELS / "mixtral", tmp_path / "base", ignore=shutil.ignore_patterns("golden*", "adapter*"))
    for file in (pathlib.Path(program.family).parent / "base").glob("tokenizer*"):
        shutil.copy(file, tmp_path / "base")
    shutil.copy(MODELS / "mixtral" / "adapter.gguf", tmp_path / "tuned.gguf")
    made = make(program, tmp_path / "base", tmp_path / "tuned.gguf", "--out", tmp_path / "family.json")
    assert made["content"]["variants"] == [{"name": "tuned", "adapter": "tuned.gguf"}]
    found = members(program, made["family"], 0)["tuned"]
    assert found["fits"] and found["kind"] == "adapter"
    shutil.copy(MODELS / "granite" / "adapter.gguf", tmp_path / "other.gguf")
    text = refusal(program, "family", "init", tmp_path / "base", tmp_path / "other.gguf", "--out", tmp_path / "f.json")
    assert "is 'granite': the base model is mixtral" in text


def test_quantised_variants_are_members(program, tmp_path):
    """Each in its own format."""
    names = ("gptq-4", "int8", "fbgemm")
    for name in names:
        shutil.copytree(MODELS / "quantized" / name, tmp_path / name)
    vocabulary = {chr(ord("!") + i): i for i in range(94)}
    (tmp_path / "gptq-4" / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "unk_token": "!", "vocab": vocabulary, "merges": []}}))
    made = make(program, *(tmp_path / name for name in names), "--out", tmp_path / "family.json")
    assert [entry["path"] for entry in made["content"]["variants"]] == ["int8", "fbgemm"]
    edit(tmp_path / "int8" / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    text = refusal(program, "family", "init", *(tmp_path / name for name in names), "--out", tmp_path / "f.json")
    assert '"quantization_config.quant_method" is "bitsandbytes"' in text


def test_a_copy_of_the_base_fits(program, parts, tmp_path):
    shutil.copytree(parts / "base", parts / "copy")
    make(program, parts / "base", parts / "copy", "--out", tmp_path / "family.json")
    assert members(program, tmp_path / "family.json", 0)["copy"]["kind"] == "checkpoint"


def test_every_variant_that_does_not_fit_is_named(program, parts):
    shutil.copytree(parts / "base", parts / "turned")
    edit(parts / "turned" / "config.json", rope_theta=5000.0)
    edit(parts / "adapters" / "beta" / "adapter_config.json", r=3)
    family = parts / "family.json"
    content = json.loads(family.read_text())
    content["variants"].append({"name": "turned", "path": "turned"})
    family.write_text(json.dumps(content))
    found = members(program, family, 1)
    assert [name for name, row in found.items() if row["fits"]] == ["base", "alpha"]
    assert found["turned"]["problem"] == "RoPE theta is 5000 where the base has 10000"
    assert "lora_A" in found["beta"]["problem"] and "adapter_config.json want [3, 64]" in found["beta"]["problem"]


def test_a_base_that_cannot_be_read_is_said(program, parts):
    edit(parts / "base" / "config.json", model_type="mamba")
    found = members(program, parts / "family.json", 1)
    assert 'model_type "mamba" is not supported' in found["base"]["problem"]
    assert not found["alpha"]["fits"]


def test_what_a_variant_says_of_prompts_otherwise_than_the_base_is_named(program, parts, tmp_path):
    """All are asked with the base's tokens, whose caches they read."""
    variant = parts / "adapters" / "alpha"
    (variant / "chat_template.jinja").write_text("another")
    said = ["its chat template is another one; the base's is used"]
    rows = members(program, parts / "family.json", 0)
    assert {name: row["differences"] for name, row in rows.items() if "differences" in row} == {"alpha": said}
    log = tmp_path / "serve.log"
    Server(parts / "family.json", "--device", "cpu", log=log).terminate()
    assert f'droidspeak: variant "alpha": {said[0]}\n' in log.read_text()


def test_nothing_is_written_of_what_does_not_fit(program, parts, tmp_path):
    edit(parts / "adapters" / "beta" / "adapter_config.json", r=3)
    out = tmp_path / "family.json"
    assert "beta" in refusal(program, "family", "init", parts / "base", parts / "adapters" / "beta", "--out", out)
    assert not out.exists()


def test_wrong_arguments_are_named(program, parts, tmp_path):
    base, alpha = parts / "base", parts / "adapters" / "alpha"
    init = ["family", "init"]
    assert "/nowhere" in refusal(program, *init, base, "/nowhere", "--out", tmp_path / "f.json")
    assert "is an adapter" in refusal(program, *init, alpha, "--out", tmp_path / "f.json")
    assert 'the name "alpha" is taken' in refusal(program, *init, base, alpha, alpha, "--out", tmp_path / "f.json")
    assert "exists" in refusal(program, *init, base, alpha, "--out", parts / "family.json")


def test_a_slash_behind_a_folder_changes_nothing(program, parts, tmp_path, monkeypatch):
    made = make(program, f"{parts / 'base'}/", f"{parts / 'adapters' / 'alpha'}/", "--out", tmp_path / "f.json")
    assert made["content"]["base"]["name"] == "base" and made["content"]["variants"][0]["name"] == "alpha"
    monkeypatch.chdir(parts / "base")
    assert make(program, ".", "--out", tmp_path / "g.json")["content"]["base"] == {"name": "base", "path": "parts/base"}


def test_next_commands_can_be_run_by_a_shell(program, parts, tmp_path):
    folder = tmp_path / "it's a größe"
    made = make(program, parts / "base", parts / "adapters" / "alpha", "--out", folder)
    words = [shlex.split(command) for command in made["next"]]
    assert words[-1] == ["droidspeak", "serve", "--family", str(folder / "family.json")]
    assert words[0][words[0].index("--out") + 1] == str(folder / "plans" / "alpha-from-base.json")
    assert all(row["fits"] for row in members(program, folder, 0).values())


def test_what_cannot_be_a_member_is_said(program, parts, tmp_path):
    base, alpha = parts / "base", parts / "adapters" / "alpha"

    def said(*arguments, out=tmp_path / "f.json"):
        return refusal(program, "family", "init", *arguments, "--out", out)

    weights = alpha / "adapter_model.safetensors"
    assert f"{weights}: expected a GGUF file or a folder: give {alpha}" in said(base, f"x={weights}")
    assert f"give {base}" in said(base / "config.json")
    assert '"x=" names no file or folder' in said(base, "x=")
    assert 'its name is "a b"' in said(base, f"a b={alpha}")
    assert "must be UTF-8" in said(base, os.fsdecode(b"b\xff=") + str(alpha))
    assert f"{weights} is a file: expected a folder" in said(base, out=weights / "new")
    assert "--out names no file or folder" in said(base, out="")


def test_adapters_and_experts_are_described(program):
    found = program.run("inspect", pathlib.Path(program.family).parent / "adapters" / "alpha", "--json")
    assert json.loads(found.stdout)["made_for"] == "base", "by its own word"
    found = program.run("inspect", MODELS / "mixtral" / "adapter.gguf", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["kind"] == "adapter" and json.loads(found.stdout)["architecture"] == "llama"
    found = program.run("inspect", MODELS / "smollm2" / "activated.gguf", "--json")
    assert len(json.loads(found.stdout)["invocation_tokens"]) > 0
    config = json.loads((MODELS / "mixtral" / "config.json").read_text())
    found = json.loads(program.run("inspect", MODELS / "mixtral", "--json").stdout)
    assert (found["experts"], found["experts_of_token"]) == (config["num_local_experts"], config["num_experts_per_tok"])
    assert found["expert_size"] == config["intermediate_size"]


@pytest.fixture(params=["gemma2", "mixtral", "gpt-oss"])
def other_family(program, tmp_path, request):
    """A tiny model of another architecture with an adapter, and the tokenizer of the tiny family."""
    base = pathlib.Path(shutil.copytree(MODELS / request.param, tmp_path / "base", ignore=shutil.ignore_patterns("golden*")))
    shutil.move(base / "adapter", tmp_path / "qa")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pathlib.Path(program.family).parent / "base" / name, base)
    return type(program)(pathlib.Path(make(program, base, tmp_path / "qa", "--out", tmp_path)["family"]))


def test_other_architectures_share_their_caches(other_family, text):
    own = ["generate", "--model", "qa", "--context-file", text, "--prompt", "And then?", "--max-tokens", 6, "--temperature", 0]
    shared = other_family.json(*own, "--sender", "qa", "--plan", "0,1,2")
    assert shared["reused_tokens"] > 0
    assert shared["tokens"] == other_family.json(*own)["tokens"], "a model's own cache changes nothing"


def test_other_architectures_are_profiled_and_served(other_family, rows, tmp_path):
    book = tmp_path / "plans" / "qa-from-base.json"
    found = other_family.json("profile", "--sender", "base", "--receiver", "qa", "--data", rows, "--out", book, "--contexts", 8)
    kls = {entry["plan"]: entry["kl"] for entry in found["frontier"]}
    assert len(kls) > 1 and min(kls.values()) < max(kls.values())
    edit(other_family.family, plan_books=[str(book)])
    assert all(row["fits"] for row in members(other_family, other_family.family, 0).values())
    server = Server(other_family.family, "--device", "cpu")
    try:
        prompt = "Plans and caches. " * 12
        for model in ("base", "qa"):
            body = {"model": model, "prompt": prompt + "What?", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
            sent = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(sent, timeout=60) as answer:
                assert json.load(answer)["usage"]["completion_tokens"] > 0
    finally:
        assert server.terminate() == 0


def test_a_profile_says_how_its_book_comes_into_use(program, parts, rows):
    family = parts / "family.json"
    command = ["profile", "--sender", "base", "--receiver", "alpha", "--data", rows, "--out", parts / "alpha.json", "--contexts", 2,
               "--family", family, "--device", "cpu"]
    hint = f'it is used when "plan_books" of {family} names it'
    assert program.run(*command).stdout.splitlines()[-1] == hint
    edit(family, plan_books=["alpha.json"])
    assert hint not in program.run(*command).stdout


def test_a_base_without_a_tokenizer_is_no_family(program, parts, tmp_path):
    """Nobody could ask it anything: `serve` would end at once."""
    (parts / "base" / "tokenizer.json").rename(parts / "elsewhere.json")
    said = refusal(program, "family", "init", parts / "base", parts / "adapters" / "alpha", "--out", tmp_path / "new")
    assert "no family.json was written" in said and '"base"' in said and "tokenizer" in said
    assert not (tmp_path / "new").exists()
    gguf = MODELS / "gguf" / "llama.gguf"
    assert "tokenizer" in refusal(program, "family", "init", gguf, "--out", tmp_path / "new")
    family = parts / "family.json"
    assert "tokenizer" in members(program, family, 1)["base"]["problem"]


def test_a_variant_that_reads_texts_as_the_base_does_is_said(program, parts, tmp_path):
    """Its own tokenizer may have been left behind: nothing tells whether it was the same."""
    for name in ("with", "without"):
        shutil.copytree(parts / "base", parts / name)
    for file in (parts / "without").glob("tokenizer*"):
        file.unlink()
    arguments = ["family", "init", parts / "base", parts / "with", parts / "without", "--out"]
    done = program.run(*arguments, tmp_path / "text.json")
    assert done.returncode == 0 and "note: " in done.stdout and "the base's is used" in done.stdout
    made = make(program, *arguments[2:], tmp_path / "family.json")
    assert len(made["notes"]) == 1 and '"without"' in made["notes"][0]
    found = members(program, made["family"], 0)
    assert "the base's is used" in found["without"]["note"]
    assert "note" not in found["with"] and "note" not in found["base"]


def test_codec_steps_are_checked(program, parts, tmp_path):
    """Where something is coded `serve` ends with the words of `inspect`; elsewhere nobody needs the file."""
    family = parts / "family.json"
    config = json.loads((parts / "base" / "config.json").read_text())
    channels = config["num_key_value_heads"] * config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    steps = {"layers": [{"keys": [0] * channels, "values": [0] * channels} for _ in range(config["num_hidden_layers"])]}
    (parts / "steps.json").write_text(json.dumps(steps))
    edit(family, codec_steps="steps.json")
    done = program.run("inspect", family, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["codec_steps"]["fits"]
    steps["layers"][0]["keys"].pop()
    for text in (json.dumps(steps), "{", None):
        (parts / "steps.json").unlink()
        if text is not None:
            (parts / "steps.json").write_text(text)
        done = program.run("inspect", family, "--json")
        found = json.loads(done.stdout)
        assert done.returncode == 1 and not found["intact"] and str(parts / "steps.json") in found["codec_steps"]["problem"]
        coded = ("--cache-dir", tmp_path / "cache", "--cache-format", "coded")
        assert found["codec_steps"]["problem"] in refusal(program, "serve", "--family", family, "--device", "cpu", "--port", 0, *coded)
        assert Server(family).terminate() == 0

"""A cache serves only the weights that wrote it, used as they were used then: one changed value is a miss."""

import json
import shutil

import pytest

CONTEXT = 130  # two full blocks and a part of one


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def config(**fields):
    return lambda folder: edit(folder / "base" / "config.json", **fields)


def adapter(**fields):
    return lambda folder: edit(folder / "adapters" / "alpha" / "adapter_config.json", **fields)


def unchanged(folder):
    pass


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CHANGES = {  # what is changed: (model, edit of the family's files, more arguments, whether answers change)
    "rope_theta": ("base", config(rope_theta=20000.0), [], True),
    "rope_scaling": ("base", config(rope_scaling=YARN), [], True),
    "epsilon": ("base", config(rms_norm_eps=1e-2), [], True),
    "window": ("base", config(model_type="mistral", sliding_window=24), [], True),
    "context length": ("base", config(max_position_embeddings=2048), [], False),
    "precision": ("base", unchanged, ["--precision", "exact"], False),
    "length limit": ("base", unchanged, ["--max-model-len", 1000], False),
    "disk format": ("base", unchanged, ["--cache-format", "int8"], False),
    "coded on disk": ("base", unchanged, ["--cache-format", "coded"], False),
    "K/V dtype": ("base", unchanged, ["--kv-dtype", "bf16"], True),
    "base of an adapter": ("alpha", config(rope_theta=20000.0), [], True),
    "lora_alpha": ("alpha", adapter(lora_alpha=9), [], True),
    "rslora": ("alpha", adapter(use_rslora=True), [], True),
}


@pytest.fixture
def score(program, text, tmp_path):
    """score(folder of a family, cache folder, model, arguments) -> nll"""
    def run(family, cache, model, arguments):
        dtype = [] if "--kv-dtype" in arguments else ["--kv-dtype", "f32"]
        done = program.run("score", "--family", family / "family.json", "--model", model, "--sender", model, "--plan", "reuse", "--file", text,
                           "--context-tokens", CONTEXT, "--cache-dir", cache, *dtype, *arguments, "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["nll"]
    return run


def blocks(cache):
    return {path.name for path in cache.rglob("*.kv")}


@pytest.mark.parametrize("change", CHANGES)
def test_one_changed_value_is_a_miss(program, score, tmp_path, change):
    model, edit_files, arguments, changes_answers = CHANGES[change]
    family, cache = tmp_path / "family", tmp_path / "cache"
    shutil.copytree(program.family.parent, family)
    before = score(family, cache, model, [])
    stored = blocks(cache)
    assert len(stored) == 2
    assert score(family, cache, model, []) == before and blocks(cache) == stored, "the same again is a hit"
    edit_files(family)
    after = score(family, cache, model, arguments)
    assert after == score(family, tmp_path / "empty", model, arguments), "as if there had been no cache"
    assert (after != before) == changes_answers
    assert stored < blocks(cache) and len(blocks(cache)) == 4, "nothing of the other's is used or replaced"


def test_ids_without_an_embedding_are_refused_at_load(program, text, tmp_path):
    family = tmp_path / "family"
    shutil.copytree(program.family.parent, family)
    path = family / "base" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 320, "content": "<|beyond|>"})
    path.write_text(json.dumps(tokenizer))
    for command in (["score", "--model", "base", "--file", text], ["serve", "--port", 0]):
        done = program.run(*command, "--family", family / "family.json", "--device", "cpu")
        assert done.returncode == 1 and "its tokenizer has ids up to 320: the model has 320 embeddings" in done.stderr, done.stderr

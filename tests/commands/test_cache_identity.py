"""A cache serves only the weights that wrote it, used as they were used then: one changed value is a miss."""

import json
import pathlib
import shutil
import string

import pytest

MODELS = pathlib.Path(__file__).resolve().parents[1] / "data" / "models"
CONTEXT = 130  # two full blocks and a part of one


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def config(**fields):
    return lambda folder: edit(folder / "base" / "config.json", **fields)


def adapter(**fields):
    return lambda folder: edit(folder / "adapters" / "alpha" / "adapter_config.json", **fields)


def rope(path=(), **fields):
    """Changes fields of rope_parameters, or of an object in it."""
    def change(folder):
        file = folder / "base" / "config.json"
        content = json.loads(file.read_text())
        place = content["rope_parameters"]
        for name in path:
            place = place[name]
        place.update(fields)
        file.write_text(json.dumps(content))
    return change


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
    "alpha of some modules": ("alpha", adapter(alpha_pattern={"q_proj": 3}), [], True),
    "alpha of other modules": ("alpha", adapter(alpha_pattern={"layers.1.self_attn.v_proj": 3}), [], True),
}
FULL, SLIDING = ("full_attention",), ("sliding_attention",)
ARCHITECTURES = [  # one value of one field each, in a model of the tests' that has it
    ("llama3", rope(rope_theta=9000.0)), ("llama3", rope(factor=4.0)), ("llama3", rope(low_freq_factor=1.5)), ("llama3", rope(high_freq_factor=3.0)),
    ("llama3", rope(original_max_position_embeddings=80)),
    ("llama3", config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})),
    ("mistral", config(sliding_window=41)), ("mistral", config(sliding_window=None)),
    ("qwen2-windows", config(sliding_window=39)), ("qwen2-windows", config(use_sliding_window=False, layer_types=["full_attention"] * 3)),
    ("qwen2-windows", config(layer_types=["full_attention", "full_attention", "sliding_attention"], max_window_layers=2)),
    ("gemma2", config(attn_logit_softcapping=5.0)), ("gemma2", config(attn_logit_softcapping=None)), ("gemma2", config(query_pre_attn_scalar=24)),
    ("gemma2", config(sliding_window=30)), ("gemma2", config(rms_norm_eps=1e-3)), ("gemma2", config(hidden_activation="silu")),
    ("gemma2", config(layer_types=["full_attention", "sliding_attention", "sliding_attention"])),
    ("gemma3", rope(FULL, rope_theta=20000.0)), ("gemma3", rope(FULL, factor=4.0)), ("gemma3", rope(SLIDING, rope_theta=500.0)),
    ("granite", config(embedding_multiplier=5.0)), ("granite", config(attention_multiplier=0.3)), ("granite", config(residual_multiplier=0.5)),
    ("olmo3", rope(FULL, factor=2.0)), ("olmo3", rope(FULL, original_max_position_embeddings=48)), ("olmo3", rope(FULL, attention_factor=1.5)),
    ("olmo3", rope(FULL, beta_slow=3.0)), ("olmo3", rope(SLIDING, rope_theta=500.0)),
    ("phi3-long", rope(long_factor=[1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 9.0])), ("phi3-long", rope(attention_factor=1.3)),
    ("phi4-mini", rope(partial_rotary_factor=0.75, long_factor=[1.5, 2.0, 3.5])),
    ("phi4-mini", rope(partial_rotary_factor=0.5, long_factor=[1.5, 2.0], short_factor=[1.0, 1.05])),
    ("smollm3", config(no_rope_layers=[1, 1, 1, 0, 1])), ("smollm3", config(no_rope_layers=[0, 0, 1, 0, 1])),
    ("qwen2-moe", config(norm_topk_prob=True)), ("qwen2-moe", config(num_experts_per_tok=2)), ("mixtral", config(num_experts_per_tok=1)),
    ("qwen3", config(rms_norm_eps=1e-3)),
]
# Logits alone change: K/V is the same, but the configuration is one.
LOGITS_ONLY = [("gemma2", config(final_logit_softcapping=7.0)), ("granite", config(logits_scaling=2.0))]


@pytest.fixture
def score(program, text, tmp_path):
    """score(folder of a family, cache folder, model, arguments, file, tokens of its context) -> nll"""
    def run(family, cache, model, arguments, file=text, context=CONTEXT):
        dtype = [] if "--kv-dtype" in arguments else ["--kv-dtype", "f32"]
        done = program.run("score", "--family", family / "family.json", "--model", model, "--sender", model, "--plan", "reuse", "--file", file,
                           "--context-tokens", context, "--cache-dir", cache, *dtype, *arguments, "--device", "cpu", "--json")
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


def write_tokenizer(folder):
    """A token for each character, with ids that the smallest models have."""
    vocabulary = {character: number + 3 for number, character in enumerate(string.ascii_letters + ".,?!")}
    vocabulary = {"<unk>": 0, "\u0120": 1, "<|end|>": 2, **vocabulary}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.txt"
    path.write_text("Where one variant has read a context, the others start from its caches. Nobody waits. " * 2 + "What then?")
    return path


def family_of(architecture, folder):
    shutil.copytree(MODELS / architecture, folder / "base", ignore=shutil.ignore_patterns("golden*", "adapter*"))
    write_tokenizer(folder / "base")
    (folder / "family.json").write_text(json.dumps({"name": architecture, "base": {"name": "base", "path": "base"}}))
    return folder


@pytest.mark.parametrize("case", range(len(ARCHITECTURES)), ids=[f"{name}-{number}" for number, (name, _) in enumerate(ARCHITECTURES)])
def test_one_changed_field_of_an_architecture_is_a_miss(score, letters, tmp_path, case):
    architecture, edit_files = ARCHITECTURES[case]
    family, cache = family_of(architecture, tmp_path / "family"), tmp_path / "cache"
    before = score(family, cache, "base", [], letters)
    stored = blocks(cache)
    assert len(stored) == 2
    edit_files(family)
    after = score(family, cache, "base", [], letters)
    assert after == score(family, tmp_path / "empty", "base", [], letters), "as if there had been no cache"
    assert after != before and stored < blocks(cache) and len(blocks(cache)) == 4


@pytest.mark.parametrize("case", range(len(LOGITS_ONLY)))
def test_fields_of_the_logits_are_those_of_now(score, letters, tmp_path, case):
    architecture, edit_files = LOGITS_ONLY[case]
    family, cache = family_of(architecture, tmp_path / "family"), tmp_path / "cache"
    before = score(family, cache, "base", [], letters)
    edit_files(family)
    after = score(family, cache, "base", [], letters)
    assert after == score(family, tmp_path / "empty", "base", [], letters) != before


@pytest.mark.parametrize("architecture", ["phi3-long", "phi4-mini"])
def test_the_length_limit_chooses_the_table(score, letters, tmp_path, architecture):
    """Up to the original length longrope has its short factors, and both are right in one folder."""
    family, cache = family_of(architecture, tmp_path / "family"), tmp_path / "cache"
    text = tmp_path / "short.txt"
    text.write_text(letters.read_text()[:100])
    seen = [score(family, cache, "base", arguments, text, 70) for arguments in ([], ["--max-model-len", 128], ["--max-model-len", 127], [])]
    assert seen[0] == seen[3] != seen[1] == seen[2]
    assert seen[1] == score(family, tmp_path / "empty", "base", ["--max-model-len", 128], text, 70)
    assert len(blocks(cache)) == 3


def test_another_tokenizer_reads_other_contexts(score, letters, tmp_path):
    family, cache = family_of("llama3", tmp_path / "family"), tmp_path / "cache"
    before = score(family, cache, "base", [], letters)
    path = family / "base" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    path.write_text(json.dumps(tokenizer))
    after = score(family, cache, "base", [], letters)
    assert after == score(family, tmp_path / "empty", "base", [], letters) != before


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

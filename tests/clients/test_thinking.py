"""Thoughts in front of answers, where the template opens them: with formats, and with tags that are special tokens."""

import json
import pathlib
import subprocess

import httpx
import pytest

from server_process import Server, build_folder

THINK_END = 259  # its token
IM_START = 257   # a special token
QUOTE = ord('"')


def thinking_family(folder, special):
    """A tiny family whose template opens <think> and whose tokenizer has </think> as one token."""
    made = subprocess.run([build_folder() / "bin" / "tiny_family", folder], check=True, capture_output=True, text=True)
    base = folder / "base"
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({"content": "</think>", "id": THINK_END, "lstrip": False, "normalized": False,
                                      "rstrip": False, "single_word": False, "special": special})
    tokenizer["model"]["vocab"]["</think>"] = THINK_END
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((base / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    assert "<think>" in config["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    return pathlib.Path(made.stdout.strip())


@pytest.fixture(scope="module", params=[False, True], ids=["plain tags", "special tags"])
def thinking(request, tmp_path_factory):
    server = Server(thinking_family(tmp_path_factory.mktemp("thinking"), request.param))
    yield server
    assert server.terminate() == 0


def ask(server, **fields):
    body = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": 4, "n": 4,
            "logit_bias": {THINK_END: 100, IM_START: 99, QUOTE: 98}, **fields}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()
    return [(choice["message"], choice["finish_reason"]) for choice in answer["choices"]]


def test_answers_behind_thoughts_are_what_their_format_says(thinking):
    texts = ["<|im_start|>", "<|im_start|>a"]
    for message, finish in ask(thinking, structured_outputs={"choice": texts}):
        assert finish == "stop" and message["content"] in texts
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 4, "maxLength": 40}}, "required": ["a"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for message, finish in ask(thinking, response_format=wanted):
        assert finish == "stop" and 4 <= len(json.loads(message["content"])["a"]) <= 40


@pytest.mark.parametrize("field", [{"reasoning_effort": "none"}, {"thinking": False}])
def test_thoughts_that_the_template_begins_cannot_be_left_out(thinking, field):
    body = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **field}
    answer = httpx.post(thinking.url + "/v1/chat/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(field)), answer.text
    assert httpx.post(thinking.url + "/v1/completions", json={"model": "base", "prompt": "hi", "max_tokens": 1, **field}).status_code == 200


def test_thoughts_end_at_their_tag(thinking):
    [(message, finish)] = ask(thinking, n=1, max_tokens=3, ignore_eos=True, temperature=0, logit_bias={THINK_END: 100})
    assert finish == "length" and message["content"] == 2 * "</think>" and "reasoning_content" not in message

"""Calls as models of another kind write them: what a structured answer says is no call."""

import json
import pathlib
import subprocess

import httpx
import pytest

from server_process import ROOT, Server, build_folder

TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"]}}}]


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    """A tiny family with the template of Mistral Small 3.2, whose calls have no quotes around them."""
    folder = tmp_path_factory.mktemp("mistral")
    made = subprocess.run([build_folder() / "bin" / "tiny_family", folder], check=True, capture_output=True, text=True)
    config = folder / "base" / "tokenizer_config.json"
    template = (ROOT / "tests/data/chat_templates/mistral-small-3.2.jinja").read_text()
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    server = Server(pathlib.Path(made.stdout.strip()))
    yield server
    assert server.terminate() == 0


def ask(server, **fields):
    body = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "max_tokens": 200, **fields}
    [choice] = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()["choices"]
    return choice["message"], choice["finish_reason"]


def test_a_structured_answer_may_quote_a_call(mistral):
    quoted = {"a": "see [TOOL_CALLS]get[ARGS]{7} there"}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [quoted]}}}
    message, finish = ask(mistral, response_format=wanted, logit_bias={str(ord("{")): 100})
    assert finish == "stop" and json.loads(message["content"]) == quoted and "tool_calls" not in message


def test_a_call_may_come_instead(mistral):
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [{"a": 1}]}}}
    message, finish = ask(mistral, response_format=wanted, logit_bias={str(ord("[")): 100}, parallel_tool_calls=False)
    assert finish == "tool_calls" and message["content"] is None
    assert set(json.loads(message["tool_calls"][0]["function"]["arguments"])) == {"city"}

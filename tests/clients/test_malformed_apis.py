"""Broken requests to the calls of agents: the documented status, the API's own error shape, the field's name."""

import json

import httpx
import pytest

RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def tool(**fields):
    return {"type": "function", "function": {"name": "f", **fields}}


BROKEN = [
    (CHAT, {"messages": USER, "tools": "x"}, "tools"),
    (CHAT, {"messages": USER, "tools": [tool(name="a b")]}, "tools[0].function.name"),
    (CHAT, {"messages": USER, "tools": [tool(name="x" * 129)]}, "tools[0].function.name"),
    (CHAT, {"messages": USER, "tools": [tool(), tool()]}, "tools[1].function.name"),
    (CHAT, {"messages": USER, "tools": [tool(name=f"f{i}") for i in range(513)]}, "tools"),
    (CHAT, {"messages": USER, "tools": [tool(parameters={"x": "y" * 300_000})]}, "tools[0].function.parameters"),
    (CHAT, {"messages": USER, "tools": [tool()], "tool_choice": "always"}, "tool_choice"),
    (CHAT, {"messages": USER, "tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"id": "x" * 257}]}]}, "messages[0].tool_calls[0].id"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": "[1]"}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    (CHAT, {"messages": USER, "tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters"),
    (CHAT, {"messages": USER, "tools": [tool(parameters={"properties": {
        str(i): {"type": "string", "maxLength": 200 + i} for i in range(40)}})]}, "tools"),
    (CHAT, {"messages": USER, "tools": [tool(name=f"f{i}", description="x" * 200_000) for i in range(6)],
            "tool_choice": "none"}, "tools[5].function.parameters"),
    (CHAT, {"messages": USER, "reasoning_effort": "high"}, "reasoning_effort"),
    (CHAT, {"messages": USER, "structured_outputs": {"json": "{}}, {"}}, "structured_outputs.json"),
    (RESPONSES, {}, "input"),
    (RESPONSES, {"input": {}}, "input"),
    (RESPONSES, {"input": [{"type": "file_search_call"}]}, "input[0].type"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": 1, "output": "x"}]}, "input[0].call_id"),
    (RESPONSES, {"input": "x", "tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
    (RESPONSES, {"input": "x", "max_output_tokens": "9"}, "max_output_tokens"),
    (RESPONSES, {"input": "x", "previous_response_id": "r"}, "previous_response_id"),
    (RESPONSES, {"input": "x" * 100_000}, "input"),
    (RESPONSES, {"input": [{"role": "user", "content": "x"}] * 8193}, "input"),
]


@pytest.mark.parametrize("path,body,param", BROKEN)
def test_openai_calls(server, model, path, body, param):
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    answer = httpx.post(server.url + path, json={"model": model, limit: 1, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error


BLOCK = "messages[0].content[0]"
BROKEN_MESSAGES = [
    ({"messages": "x"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, BLOCK),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, BLOCK),
    ({"messages": [{"role": "user", "content": [7]}]}, BLOCK),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 1}]}]}, BLOCK),
    ({"messages": USER, "system": 7}, "system"),
    ({"messages": USER, "tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"messages": USER, "tools": [{"name": "f", "input_schema": nested(63)}]}, "64"),
    ({"messages": USER, "tool_choice": {"type": "tool"}}, "tool_choice"),
    ({"messages": USER, "thinking": {"type": "enabled"}}, "thinking"),
    ({"messages": USER, "stop_sequences": ["x"] * 5}, "stop_sequences"),
    ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "context length"),
]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize("body,named", BROKEN_MESSAGES)
def test_anthropics_calls(server, model, path, body, named):
    answer = httpx.post(server.url + path, json={"model": model, "max_tokens": 1, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert set(error) == {"type", "error"} and error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert named in error["error"]["message"], error


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, COUNT])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model": 1}', b"[" * 100_000])
def test_bodies_that_are_no_object(server, path, body):
    answer = httpx.post(server.url + path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert ("type" in answer.json()) == path.startswith(MESSAGES)


def test_errors_before_the_call_have_the_paths_shape(server):
    wrong_verb = httpx.get(server.url + MESSAGES)
    assert wrong_verb.status_code == 405 and wrong_verb.json()["type"] == "error"
    unknown = httpx.post(server.url + "/v1/messages/batches", json={})
    assert unknown.status_code == 404 and unknown.json()["error"]["type"] == "not_found_error"
    plain = httpx.post(server.url + MESSAGES, content="{}", headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415 and plain.json()["type"] == "error"


def test_key_order_reaches_the_model(server, model):
    """The same tool with its keys in another order is another prompt."""
    def tokens(function):
        body = {"model": model, "messages": USER, "tools": [{"type": "function", "function": function}]}
        return httpx.post(server.url + "/tokenize", json=body).json()["tokens"]
    first = {"name": "f", "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}
    second = json.loads(json.dumps(first))
    second["parameters"]["properties"] = {"a": {}, "z": {}}
    assert tokens(first) != tokens(second)
    assert len(tokens(first)) == len(tokens(second))

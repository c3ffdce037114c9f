"""Answers and events held against the clients' own types. The clients themselves take what comes without a look."""

import json

import httpx
import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"], "additionalProperties": False}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}
USER = [{"role": "user", "content": "How is the weather?"}]
CALLS = {
    # Of a stream's pieces it has no type: in those a reason to finish may be null.
    "/v1/completions": ({"prompt": "Well", "max_tokens": 8, "logprobs": 1}, [], Completion, dict),
    "/v1/chat/completions": ({"messages": USER, "max_tokens": 200}, [{"type": "function", "function": FUNCTION}], ChatCompletion, ChatCompletionChunk),
    "/v1/responses": ({"input": USER, "max_output_tokens": 200}, [{"type": "function", "strict": True, **FUNCTION}], Response, ResponseStreamEvent),
    "/v1/messages": ({"messages": USER, "max_tokens": 200}, [{"name": "get_weather", "input_schema": SCHEMA}], Message, RawMessageStreamEvent),
}


def bodies(path, model):
    """Text, text that is cut off, and where there are tools a call."""
    fields, tools, _, _ = CALLS[path]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    plain = {"model": model, "seed": 1, **fields}
    yield plain
    yield plain | {limit: 2, "ignore_eos": True}
    if tools:
        yield plain | {"tools": tools, "tool_choice": {"type": "any"} if path == "/v1/messages" else "required"}


def events_of(path, text):
    found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if path == "/v1/completions":  # an answer that goes on has no reason to end; the type of whole answers wants one
        for choice in (choice for event in found for choice in event["choices"]):
            choice["finish_reason"] = choice["finish_reason"] or "stop"
    return [event for event in found if event.get("type") != "ping"]


@pytest.mark.parametrize("path", CALLS)
def test_answers_have_the_clients_types(server, model, path):
    whole, piece = (pydantic.TypeAdapter(kind) for kind in CALLS[path][2:])
    for body in bodies(path, model):
        answer = httpx.post(server.url + path, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        whole.validate_python(answer.json())
        events = events_of(path, httpx.post(server.url + path, json=body | {"stream": True}, timeout=60).text)
        assert len(events) > 2
        for event in events:
            piece.validate_python(event)

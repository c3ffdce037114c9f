"""The anthropic package, unmodified."""

import json

import anthropic
import pytest

from server_process import Server

MESSAGES = [{"role": "user", "content": "How is the weather in Oslo?"}]
TOOLS = [{
    "name": "get_weather",
    "description": "The weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}]
NAMED = {"type": "tool", "name": "get_weather"}


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def test_message(claude, model):
    answer = claude.messages.create(model=model, messages=MESSAGES, system="Be brief.", max_tokens=8)
    assert answer.type == "message" and answer.role == "assistant" and answer.model == model
    assert all(block.type == "text" for block in answer.content)
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens <= 8


def test_stream_gives_the_text_of_the_whole_answer(claude, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=16, extra_body={"seed": 7})
    whole = claude.messages.create(**options)
    with claude.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_stop_sequences_are_named(claude, model):
    options = dict(model=model, messages=MESSAGES, max_tokens=32, extra_body={"seed": 1, "ignore_eos": True})
    whole = claude.messages.create(**options).content[0].text
    stop = whole[len(whole) // 2:][:2]
    answer = claude.messages.create(**options, stop_sequences=[stop])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop
    assert "".join(block.text for block in answer.content) == whole[:whole.index(stop)]


def test_tools_are_called_and_results_taken(claude, model):
    options = dict(model=model, messages=MESSAGES, tools=TOOLS, tool_choice=NAMED, max_tokens=200,
                   extra_body={"seed": 2})
    answer = claude.messages.create(**options)
    assert answer.stop_reason == "tool_use"
    [block] = answer.content
    assert block.type == "tool_use" and block.name == "get_weather" and block.input["city"] in ("Oslo", "Paris")
    with claude.messages.stream(**options) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == block.input and final.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}
    messages = MESSAGES + [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert claude.messages.create(model=model, messages=messages, tools=TOOLS, max_tokens=4).usage.output_tokens <= 4


def test_event_names(claude, model):
    events = list(claude.messages.create(model=model, messages=MESSAGES, max_tokens=4, stream=True,
                                         extra_body={"ignore_eos": True}))
    types = [event.type for event in events]
    assert types[0] == "message_start" and types[-2:] == ["message_delta", "message_stop"]
    assert types.count("content_block_start") == types.count("content_block_stop")


def test_tokens_are_counted(claude, model):
    short = claude.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    answer = claude.messages.create(model=model, messages=MESSAGES, max_tokens=1)
    assert short == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert claude.messages.count_tokens(model=model, messages=MESSAGES, tools=TOOLS).input_tokens > short


@pytest.mark.parametrize("block", ["image", "document"])
def test_unsupported_blocks_are_refused_by_name(claude, model, block):
    content = [{"type": block, "source": {"type": "url", "url": "https://example.org/x"}}]
    with pytest.raises(anthropic.BadRequestError, match=block):
        claude.messages.create(model=model, max_tokens=1, messages=[{"role": "user", "content": content}])


def test_errors_have_anthropics_shape(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="nobody", messages=MESSAGES, max_tokens=1)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_keys_come_in_either_header(family):
    server = Server(family, "--api-key", "hushhush")
    try:
        for options in ({"api_key": "hushhush"}, {"auth_token": "hushhush", "api_key": None}):
            client = anthropic.Anthropic(base_url=server.url, max_retries=0, **options)
            name = json.loads(client._client.get("/v1/models", headers={"x-api-key": "hushhush"}).text)["data"][0]["id"]
            assert client.messages.create(model=name, messages=MESSAGES, max_tokens=1).type == "message"
        with pytest.raises(anthropic.AuthenticationError) as caught:
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0).messages.create(
                model="base", messages=MESSAGES, max_tokens=1)
        assert caught.value.body["error"]["type"] == "authentication_error"
    finally:
        server.terminate()

"""Tools and responses with the openai package, unmodified."""

import json

import openai
import pytest

CHAT = [{"role": "user", "content": "How is the weather in Oslo?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Paris"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "get_time", "parameters": EMPTY}},
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FLAT_TOOLS = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]


def check_weather(arguments):
    found = json.loads(arguments)
    assert set(found) == {"city", "days"}
    assert found["city"] in ("Oslo", "Paris") and 1 <= found["days"] <= 9


def check_call(name, arguments):
    if name == "get_weather":
        check_weather(arguments)
    else:
        assert name == "get_time" and json.loads(arguments) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_named_tool_is_called_with_arguments_of_its_schema(client, model, seed):
    answer = client.chat.completions.create(
        model=model, messages=CHAT, tools=TOOLS, tool_choice=NAMED, max_tokens=200, seed=seed)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.type == "function" and call.id and call.function.name == "get_weather"
    check_weather(call.function.arguments)


def test_a_required_tool_is_called_by_every_variant(client, model, variant):
    for name in (model, variant):
        answer = client.chat.completions.create(
            model=name, messages=CHAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
        [call] = answer.choices[0].message.tool_calls
        check_call(call.function.name, call.function.arguments)


def test_streamed_calls_are_those_of_the_whole_answer(client, model):
    options = dict(model=model, messages=CHAT, tools=TOOLS, tool_choice="required", max_tokens=300, seed=4)
    whole = client.chat.completions.create(**options).choices[0]
    calls, finish = [], None
    for chunk in client.chat.completions.create(**options, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            if delta.index == len(calls):
                assert delta.id and delta.type == "function" and delta.function.name
                calls.append([delta.function.name, ""])
            else:
                assert delta.index == len(calls) - 1 and delta.id is None and delta.function.name is None
            calls[-1][1] += delta.function.arguments
        finish = chunk.choices[0].finish_reason or finish
    assert finish == whole.finish_reason
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls]


def test_several_choices_call_for_themselves(client, model):
    answer = client.chat.completions.create(
        model=model, messages=CHAT, tools=TOOLS, tool_choice=NAMED, max_tokens=200, n=3, seed=1)
    for choice in answer.choices:
        check_weather(choice.message.tool_calls[0].function.arguments)


def test_without_tools_there_are_no_calls(client, model):
    answer = client.chat.completions.create(model=model, messages=CHAT, tools=TOOLS, tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason in ("stop", "length")


def test_a_conversation_goes_on_with_results(client, model):
    messages = [{"role": "developer", "content": "Be brief."}, *CHAT]
    call = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, tool_choice=NAMED, max_tokens=200).choices[0].message
    messages += [call, {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Rain."}]
    answer = client.chat.completions.create(model=model, messages=messages, tools=TOOLS, max_tokens=8)
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")
    assert answer.usage.prompt_tokens > 100


def test_a_schema_that_cannot_be_enforced_is_refused(client, model):
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?<!a)b"}}, "required": ["x"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=CHAT, tools=[tool], max_tokens=8)
    assert caught.value.param == "tools" and "tools[0] 'f'" in caught.value.message


def test_a_call_that_a_stop_string_cuts_off_is_none(client, model):
    options = dict(model=model, messages=CHAT, tools=TOOLS, tool_choice=NAMED, max_tokens=200, stop=["days"], seed=1)
    choice = client.chat.completions.create(**options).choices[0]
    assert choice.finish_reason == "stop" and not choice.message.tool_calls
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    answer = client.responses.create(
        model=model, input="Weather?", tools=FLAT_TOOLS, tool_choice={"type": "function", "name": "get_weather"},
        max_output_tokens=200, extra_body={"stop": ["days"]})
    assert answer.status == "incomplete" and answer.incomplete_details is None
    assert answer.output[-1].status == "incomplete"


def test_a_call_that_was_cut_off_may_be_sent_back(client, model):
    call = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Os'}}
    turns = CHAT + [{"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": "What?"}]
    assert client.chat.completions.create(model=model, messages=turns, tools=TOOLS, max_tokens=8).choices


def test_responses(client, model):
    answer = client.responses.create(model=model, input="Hello", instructions="Be brief.", max_output_tokens=8)
    assert answer.object == "response" and answer.id.startswith("resp")
    assert answer.status in ("completed", "incomplete")
    assert answer.model_extra["store"] is False if "store" in (answer.model_extra or {}) else answer.store is False
    assert answer.output[0].type == "message"
    assert answer.output_text == answer.output[0].content[0].text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    if answer.status == "incomplete":
        assert answer.incomplete_details.reason == "max_output_tokens"


def test_response_events_come_in_order(client, model):
    options = dict(model=model, input=[{"role": "user", "content": "Hello"}], max_output_tokens=12,
                   extra_body={"seed": 3})
    whole = client.responses.create(**options)
    events = list(client.responses.create(**options, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events]
    assert types[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert types[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert types[-1] == "response." + whole.status
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text


def test_responses_call_tools_and_take_results(client, model):
    options = dict(model=model, tools=FLAT_TOOLS, tool_choice={"type": "function", "name": "get_weather"},
                   max_output_tokens=200, extra_body={"seed": 5})
    first = client.responses.create(input="Weather?", **options)
    [call] = first.output
    assert call.type == "function_call" and call.status == "completed"
    check_weather(call.arguments)
    events = list(client.responses.create(input="Weather?", stream=True, **options))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments
    items = [{"role": "user", "content": "Weather?"}, call,
             {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]
    answer = client.responses.create(model=model, input=items, tools=FLAT_TOOLS, max_output_tokens=8)
    assert answer.usage.input_tokens > first.usage.input_tokens


def test_responses_follow_a_schema(client, model):
    answer = client.responses.create(
        model=model, input="Weather?", max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}})
    check_weather(answer.output_text)


@pytest.mark.parametrize("field,value", [("previous_response_id", "resp_1"), ("background", True), ("conversation", "c")])
def test_what_needs_a_store_is_refused(client, model, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input="x", **{field: value})
    assert caught.value.param == field

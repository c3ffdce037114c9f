"""The OpenAI and Anthropic clients: whole conversations with their own helpers for tools and schemas."""

import json

import anthropic
import openai
import pytest

from weather import CITIES, NAMED, QUESTION, Advice, Weather, forecast

USER = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}  # Anthropic's client no longer has it


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def test_chat_is_parsed(client, model):
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    options = dict(model=model, tools=[tool], temperature=0, max_tokens=200)
    message = client.chat.completions.parse(messages=USER, tool_choice=NAMED, **options).choices[0].message
    [call] = message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    result = {"role": "tool", "tool_call_id": call.id, "content": forecast(call.function.parsed_arguments.city)}
    messages = USER + [message.to_dict(), result]
    answer = client.chat.completions.parse(messages=messages, tool_choice="none", response_format=Advice, **options)
    assert isinstance(answer.choices[0].message.parsed, Advice)


def test_chat_is_streamed_and_parsed(client, model):
    with client.chat.completions.stream(model=model, messages=USER, response_format=Advice, temperature=0,
                                        max_tokens=200) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"content.delta", "content.done"} <= kinds
    assert isinstance(answer.choices[0].message.parsed, Advice)


def test_responses_are_parsed(client, model):
    tool = openai.pydantic_function_tool(Weather, name="get_weather")["function"]
    tool = {"type": "function", **tool}
    options = dict(model=model, tools=[tool], temperature=0, max_output_tokens=200, store=False)
    first = client.responses.parse(input=USER, tool_choice={"type": "function", "name": "get_weather"}, **options)
    [call] = [item for item in first.output if item.type == "function_call"]
    weather = Weather.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": forecast(weather.city)}
    items = USER + [item.to_dict() for item in first.output] + [result]
    answer = client.responses.parse(input=items, tool_choice="none", text_format=Advice, **options)
    assert isinstance(answer.output_parsed, Advice)
    with client.responses.stream(model=model, input=items, text_format=Advice, temperature=0,
                                 max_output_tokens=200) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert Advice.model_validate_json(text) == stream.get_final_response().output_parsed


def test_messages(claude, model):
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": Weather.model_json_schema()}
    options = dict(model=model, max_tokens=200, tools=[tool], extra_body=GREEDY)
    named = {"type": "tool", "name": "get_weather"}
    first = claude.messages.create(messages=USER, tool_choice=named, **options)
    [use] = first.content
    weather = Weather.model_validate(use.input)
    result = {"type": "tool_result", "tool_use_id": use.id, "content": forecast(weather.city)}
    messages = USER + [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with claude.messages.stream(messages=messages, tool_choice={"type": "none"}, **options) as stream:
        text = "".join(stream.text_stream)
        assert text == "".join(block.text for block in stream.get_final_message().content)
    with claude.messages.stream(messages=USER, tool_choice=named, **options) as stream:
        arguments = "".join(event.partial_json for event in stream if event.type == "input_json")
    assert json.loads(arguments) == use.input


def test_messages_are_parsed(claude, model):
    answer = claude.messages.parse(model=model, max_tokens=200, messages=USER, output_format=Advice, extra_body=GREEDY)
    assert isinstance(answer.parsed_output, Advice) and answer.stop_reason == "end_turn"


def test_anthropics_tool_runner(claude, model):
    seen = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: Oslo or Paris.
        """
        seen.append(city)
        return forecast(city)

    runner = claude.beta.messages.tool_runner(
        model=model, max_tokens=200, tools=[get_weather], messages=USER, max_iterations=2, extra_body=GREEDY,
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True})
    messages = list(runner)
    assert seen and len(messages) == 2 and all(message.type == "message" for message in messages)


def test_cities_are_the_schemas(client, model):
    for seed in range(3):
        call = client.chat.completions.create(
            model=model, messages=USER, tool_choice=NAMED, max_tokens=200, seed=seed,
            tools=[{"type": "function", "function": {"name": "get_weather", "parameters": Weather.model_json_schema()}}])
        assert json.loads(call.choices[0].message.tool_calls[0].function.arguments)["city"] in CITIES

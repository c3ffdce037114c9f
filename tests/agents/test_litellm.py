"""litellm as a client of both APIs."""

import pytest

from weather import NAMED, QUESTION, TOOL, Advice, Weather, forecast


@pytest.fixture(params=["openai", "anthropic"])
def complete(server, model, request):
    import litellm
    base = server.url + ("/v1" if request.param == "openai" else "")

    def ask(messages, **more):
        return litellm.completion(model=f"{request.param}/{model}", api_base=base, api_key="none", messages=messages,
                                  num_retries=0, **{"max_tokens": 200, "temperature": 0, **more})

    return ask


USER = [{"role": "user", "content": QUESTION}]


def test_a_tool_is_called_and_its_result_taken(complete):
    message = complete(USER, tools=[TOOL], tool_choice=NAMED).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather"
    city = Weather.model_validate_json(call.function.arguments).city
    result = {"role": "tool", "tool_call_id": call.id, "content": forecast(city)}
    answer = complete(USER + [message.model_dump(), result], tools=[TOOL], tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 8


def test_a_streamed_call(complete):
    import litellm
    chunks = list(complete(USER, tools=[TOOL], tool_choice=NAMED, stream=True))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    Weather.model_validate_json(message.tool_calls[0].function.arguments)


def test_a_schema(complete):
    answer = complete(USER, response_format=Advice)
    Advice.model_validate_json(answer.choices[0].message.content)

"""openai-agents: tools, answers with a schema, streams and handoffs between variants. Greedy, so that every run is the
same. An answer that ends at max_tokens is `incomplete` in the responses API, and the package refuses it whole, its calls
included: so agents call one tool at a time, and what they answer in the end is bounded by a schema."""

import asyncio
from typing import Literal

import pytest

from weather import CITIES, QUESTION, Advice, Weather, forecast

agents = pytest.importorskip("agents")


def settings(**more):
    return agents.ModelSettings(temperature=0, max_tokens=200, parallel_tool_calls=False, **more)


def run_agent(server, api, make_agent, run):
    """run(agent) with a client that lives as long as its loop does."""
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel

    async def within():
        async with agents.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            return await run(make_agent(lambda name: kind(model=name, openai_client=client)))

    return asyncio.run(within())


def forecaster(model, seen, **more):
    @agents.function_tool(is_enabled=lambda context, agent: not seen)  # once
    def get_weather(city: Literal["Oslo", "Paris"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return forecast(city)

    return agents.Agent(name="forecaster", instructions="Be brief.", tools=[get_weather], model=model, **more)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_tool_is_called_and_its_result_becomes_an_answer(server, model, api):
    seen = []

    def make(open_model):
        return forecaster(open_model(model), seen, output_type=Advice, model_settings=settings(tool_choice="required"))

    result = run_agent(server, api, make, lambda agent: agents.Runner.run(agent, QUESTION, max_turns=4))
    assert seen and isinstance(result.final_output, Advice)
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_streamed(server, model, api):
    seen = []

    def make(open_model):
        return forecaster(open_model(model), seen, output_type=Advice, model_settings=settings(tool_choice="required"))

    async def run(agent):
        result = agents.Runner.run_streamed(agent, QUESTION, max_turns=4)
        deltas = [event.data.delta async for event in result.stream_events()
                  if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        return result.final_output, "".join(deltas)

    answer, text = run_agent(server, api, make, run)
    assert seen and Advice.model_validate_json(text) == answer


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_handoff_to_another_variant(server, model, variant, api):
    seen = []

    def make(open_model):
        expert = forecaster(open_model(variant), seen, output_type=Advice,
                            model_settings=settings(tool_choice="required"))
        return agents.Agent(name="triage", instructions="Hand over.", handoffs=[expert], model=open_model(model),
                            model_settings=settings(tool_choice="required"))

    result = run_agent(server, api, make, lambda agent: agents.Runner.run(agent, QUESTION, max_turns=6))
    assert result.last_agent.name == "forecaster" and isinstance(result.final_output, Advice) and seen


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_an_agent_is_another_agents_tool(server, model, variant, api):
    seen = []

    def make(open_model):
        expert = forecaster(open_model(variant), seen, output_type=Advice,
                            model_settings=settings(tool_choice="required"))
        tool = expert.as_tool(tool_name="ask_forecaster", tool_description="Asks the forecaster.",
                              parameters=Weather, is_enabled=lambda context, agent: not seen)
        return agents.Agent(name="planner", instructions="Ask first.", tools=[tool], model=open_model(model),
                            output_type=Advice, model_settings=settings(tool_choice="required"))

    result = run_agent(server, api, make, lambda agent: agents.Runner.run(agent, QUESTION, max_turns=4))
    assert isinstance(result.final_output, Advice) and seen


def test_what_a_cut_answer_is(server, model):
    """Not the server's failure: the package takes no incomplete response."""
    def make(open_model):
        return agents.Agent(name="writer", model=open_model(model),
                            model_settings=agents.ModelSettings(temperature=0, max_tokens=1))

    with pytest.raises(agents.ModelBehaviorError, match="incomplete"):
        run_agent(server, "responses", make, lambda agent: agents.Runner.run(agent, QUESTION))
    whole = run_agent(server, "chat", make, lambda agent: agents.Runner.run(agent, QUESTION))
    assert isinstance(whole.final_output, str)


def test_arguments_follow_the_schema(server, model):
    seen = []

    @agents.function_tool
    def get_weather(city: Literal["Oslo", "Paris"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return forecast(city)

    def make(open_model):
        return agents.Agent(name="forecaster", tools=[get_weather], model=open_model(model),
                            tool_use_behavior="stop_on_first_tool", model_settings=settings(tool_choice="get_weather"))

    result = run_agent(server, "responses", make, lambda agent: agents.Runner.run(agent, QUESTION))
    assert seen == [result.final_output.removeprefix("Rain in ").rstrip(".")] and set(seen) <= set(CITIES)

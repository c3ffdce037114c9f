"""Agent frameworks, unmodified, against a real server: tools are called with arguments of their schemas, and the
conversation goes on with the results. What the model says is not judged."""

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel, Field

QUESTION = "How is the weather in Oslo?"


class Weather(BaseModel):
    city: Literal["Oslo", "Paris"]
    days: int = Field(ge=1, le=9)


TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.",
                                         "parameters": Weather.model_json_schema()}}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(server, model, api):
    import agents
    client = agents.AsyncOpenAI(base_url=server.url + "/v1", api_key="none")
    kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
    seen = []

    @agents.function_tool
    def get_weather(city: Literal["Oslo", "Paris"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return f"Rain in {city}."

    async def run():
        agent = agents.Agent(
            name="forecaster", instructions="Be brief.", tools=[get_weather],
            model=kind(model=model, openai_client=client),
            model_settings=agents.ModelSettings(tool_choice="required", max_tokens=200, parallel_tool_calls=False))
        result = await agents.Runner.run(agent, QUESTION, max_turns=2)
        await client.close()
        return result

    try:
        result = asyncio.run(run())
        assert isinstance(result.final_output, str)
    except agents.AgentsException:
        assert seen  # a model that calls once more, or whose second answer is cut off
    assert seen and set(seen) <= {"Oslo", "Paris"}


def test_langgraph(server, model):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    seen = []

    @tool
    def get_weather(city: Literal["Oslo", "Paris"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return f"Rain in {city}."

    chat = ChatOpenAI(model=model, base_url=server.url + "/v1", api_key="none", max_tokens=200)
    caller = chat.bind_tools([get_weather], tool_choice="get_weather")
    graph = StateGraph(MessagesState)
    graph.add_node("caller", lambda state: {"messages": [caller.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_node("writer", lambda state: {"messages": [chat.bind(max_tokens=8).invoke(state["messages"])]})
    graph.add_edge(START, "caller")
    graph.add_edge("caller", "tools")
    graph.add_edge("tools", "writer")
    graph.add_edge("writer", END)
    state = graph.compile().invoke({"messages": [("user", QUESTION)]})
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert seen and state["messages"][2].content == f"Rain in {seen[0]}."


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_litellm(server, model, provider):
    import litellm
    base = server.url + ("/v1" if provider == "openai" else "")
    answer = litellm.completion(
        model=f"{provider}/{model}", api_base=base, api_key="none", max_tokens=200, tools=[TOOL],
        messages=[{"role": "user", "content": QUESTION}],
        tool_choice={"type": "function", "function": {"name": "get_weather"}})
    call = answer.choices[0].message.tool_calls[0].function
    assert call.name == "get_weather"
    Weather.model_validate_json(call.arguments)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(server, model, mode):
    import instructor
    import openai
    client = instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", api_key="none"),
                                    mode=getattr(instructor.Mode, mode))
    found = client.chat.completions.create(
        model=model, response_model=Weather, max_retries=0, max_tokens=200,
        messages=[{"role": "user", "content": QUESTION}])
    assert isinstance(found, Weather)

"""LangGraph over langchain-openai: tools in a graph, answers with a schema, streams, both of OpenAI's APIs."""

from typing import Literal

import pytest

from weather import CITIES, QUESTION, Advice, Weather, forecast


@pytest.fixture(params=["chat", "responses"])
def chat(server, model, request):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(model=model, base_url=server.url + "/v1", api_key="none", max_tokens=200, temperature=0,
                      max_retries=0, use_responses_api=request.param == "responses")


def weather_tool(seen):
    from langchain_core.tools import tool

    @tool
    def get_weather(city: Literal["Oslo", "Paris"]) -> str:
        """The weather of a city."""
        seen.append(city)
        return forecast(city)

    return get_weather


def weather_graph(chat, seen):
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    tool = weather_tool(seen)
    caller = chat.bind_tools([tool], tool_choice="get_weather")
    graph = StateGraph(MessagesState)
    graph.add_node("caller", lambda state: {"messages": [caller.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([tool]))
    writer = chat.model_copy(update={"max_tokens": 8})
    graph.add_node("writer", lambda state: {"messages": [writer.invoke(state["messages"])]})
    graph.add_edge(START, "caller")
    graph.add_edge("caller", "tools")
    graph.add_edge("tools", "writer")
    graph.add_edge("writer", END)
    return graph.compile()


def test_a_graph_with_a_tool(chat):
    seen = []
    state = weather_graph(chat, seen).invoke({"messages": [("user", QUESTION)]})
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
    assert seen and set(seen) <= set(CITIES) and state["messages"][2].content == forecast(seen[0])
    assert state["messages"][3].usage_metadata["output_tokens"] <= 8


def test_a_graph_is_streamed(chat):
    from langchain_core.messages import AIMessageChunk
    seen = []
    pieces = weather_graph(chat, seen).stream({"messages": [("user", QUESTION)]}, stream_mode="messages")
    written = [piece.text for piece, where in pieces
               if isinstance(piece, AIMessageChunk) and where["langgraph_node"] == "writer"]
    assert seen and len([text for text in written if text]) > 1


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat, method):
    found = chat.with_structured_output(Weather, method=method).invoke(QUESTION)
    assert isinstance(found, Weather) and found.city in CITIES


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")  # to a package that is not installed
def test_an_agent_of_the_library(chat):
    from langgraph.prebuilt import create_react_agent
    seen = []
    tool = weather_tool(seen)

    def choose(state, runtime):  # called once, then answered
        return chat.bind_tools([tool], tool_choice="none" if seen else "get_weather")

    agent = create_react_agent(choose, [tool], response_format=Advice)
    state = agent.invoke({"messages": [("user", QUESTION)]})
    assert len(seen) == 1 and isinstance(state["structured_response"], Advice)

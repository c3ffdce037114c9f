"""The workflow with LangGraph: a graph of four roles and a tool, one conversation."""

from typing import Literal

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

import team

STEPS = ("planner", "researcher calls", "researcher", "writer", "reviewer")


def make_graph(open_model, text):
    @tool
    def look_up(topic: Literal["sender", "receiver", "plan", "layer"]) -> str:
        """Looks a topic up in the document."""
        return team.look_up_topic(topic, text)

    def says(role, *, answer=None, tools=None):
        """The role's node: its task, then what its variant answers, as an object of the class `answer` if there is one."""
        model = open_model(role.variant)
        if tools:
            model = model.bind_tools(tools, tool_choice="any", parallel_tool_calls=False)

        def node(state):
            asked = [*state["messages"], HumanMessage(role.task)]
            if answer is None:
                return {"messages": [asked[-1], model.invoke(asked)]}
            found = model.with_structured_output(answer, method="json_schema").invoke(asked)
            return {"messages": [asked[-1], AIMessage(found.model_dump_json())], "verdict": found}

        return node

    class State(MessagesState):
        verdict: object

    reader = open_model(team.RESEARCHER.variant)
    graph = StateGraph(State)
    graph.add_node("planner", says(team.PLANNER, answer=team.Plan))
    graph.add_node("researcher", says(team.RESEARCHER, tools=[look_up]))
    graph.add_node("look_up", ToolNode([look_up]))
    graph.add_node("notes", lambda state: {"messages": [reader.invoke(state["messages"])]})
    graph.add_node("writer", says(team.WRITER))
    graph.add_node("reviewer", says(team.REVIEWER, answer=team.Verdict))
    nodes = [START, "planner", "researcher", "look_up", "notes", "writer", "reviewer", END]
    for before, after in zip(nodes, nodes[1:]):
        graph.add_edge(before, after)
    return graph.compile()


def run(url, text, recorder, extra_body):
    """The reviewer's verdict."""
    with openai.DefaultHttpxClient(event_hooks={"response": [recorder.read]}) as http:
        def open_model(variant):
            return ChatOpenAI(model=variant, base_url=url + "/v1", api_key="none", temperature=0,
                              max_tokens=team.ANSWER_TOKENS, extra_body=extra_body, http_client=http)

        state = make_graph(open_model, text).invoke({"messages": [SystemMessage(text)]})
    return state["verdict"]

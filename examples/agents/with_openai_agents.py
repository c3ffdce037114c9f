"""The workflow with openai-agents: four agents on four variants, one conversation."""

import asyncio
from typing import Literal

import agents
import openai

import team

STEPS = ("planner", "researcher calls", "researcher", "writer", "reviewer")


def make_agents(open_model, text, extra_body):
    found = []

    @agents.function_tool(is_enabled=lambda context, agent: not found)  # one look-up is enough
    def look_up(topic: Literal["sender", "receiver", "plan", "layer"]) -> str:
        """Looks a topic up in the document."""
        found.append(topic)
        return team.look_up_topic(topic, text)

    def agent(role, *, tool_choice=None, **more):
        settings = agents.ModelSettings(temperature=0, max_tokens=team.ANSWER_TOKENS, parallel_tool_calls=False,
                                        tool_choice=tool_choice, extra_body=extra_body)
        return agents.Agent(name=role.name, instructions=text, model=open_model(role.variant), model_settings=settings,
                            **more)

    return {team.PLANNER: agent(team.PLANNER, output_type=team.Plan),
            team.RESEARCHER: agent(team.RESEARCHER, tools=[look_up], tool_choice="required"),
            team.WRITER: agent(team.WRITER),
            team.REVIEWER: agent(team.REVIEWER, output_type=team.Verdict)}


async def work(url, text, recorder, extra_body):
    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [recorder.read_async]})
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", http_client=http) as client:
        def open_model(variant):
            return agents.OpenAIChatCompletionsModel(model=variant, openai_client=client)

        conversation = []
        for role, agent in make_agents(open_model, text, extra_body).items():
            result = await agents.Runner.run(agent, [*conversation, {"role": "user", "content": role.task}], max_turns=3)
            conversation = result.to_input_list()
        return result.final_output


def run(url, text, recorder, extra_body):
    """The reviewer's verdict."""
    agents.set_tracing_disabled(True)
    return asyncio.run(work(url, text, recorder, extra_body))

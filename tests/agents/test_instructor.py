"""instructor over both clients. No retries: the first answer must fit."""

import pytest

from weather import QUESTION, Advice, Weather

USER = [{"role": "user", "content": QUESTION}]


def open_client(server, mode):
    import instructor
    if mode.startswith("ANTHROPIC"):
        import anthropic
        return instructor.from_anthropic(anthropic.Anthropic(base_url=server.url, api_key="none"),
                                         mode=getattr(instructor.Mode, mode))
    import openai
    return instructor.from_openai(openai.OpenAI(base_url=server.url + "/v1", api_key="none"),
                                  mode=getattr(instructor.Mode, mode))


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA", "ANTHROPIC_TOOLS"])
@pytest.mark.parametrize("wanted", [Weather, Advice])
def test_an_object(server, model, mode, wanted):
    found = open_client(server, mode).chat.completions.create(
        model=model, response_model=wanted, max_retries=0, max_tokens=200, messages=USER, extra_body={"temperature": 0})
    assert isinstance(found, wanted)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_an_object_that_grows(server, model, mode):
    pieces = list(open_client(server, mode).chat.completions.create_partial(
        model=model, response_model=Advice, max_retries=0, max_tokens=200, messages=USER, temperature=0))
    assert len(pieces) > 1
    Advice.model_validate(pieces[-1].model_dump())

"""Answers that must look like something, checked from outside."""

import concurrent.futures
import enum
import json
import re

import jsonschema
import openai
import pydantic
import pytest

from schemas import random_schema

CHAT = [{"role": "user", "content": "Tell me something."}]
# The tiny model picks among bytes almost at random: what closes something comes more often, so that answers end.
CLOSING = {str(ord(c)): 5 for c in '"]},'}
NUM_SCHEMAS = 500


def ask(client, model, schema, seed, **options):
    return client.chat.completions.create(
        model=model, messages=CHAT, max_tokens=800, temperature=1, seed=seed, logit_bias=CLOSING,
        response_format={"type": "json_schema", "json_schema": {"name": "wanted", "schema": schema, "strict": True}}, **options)


def check(schema, text):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    validator.validate(json.loads(text))


def test_every_answer_conforms_to_its_schema(client, model, variant):
    def one(seed):
        schema = random_schema(seed)
        try:
            choice = ask(client, (model, variant)[seed % 2], schema, seed).choices[0]
        except openai.BadRequestError as error:
            assert error.param == "response_format", error
            return "refused"
        if choice.finish_reason == "stop":
            check(schema, choice.message.content)
        return choice.finish_reason

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(one, range(NUM_SCHEMAS)))
    assert outcomes.count("stop") > 0.7 * NUM_SCHEMAS
    assert outcomes.count("refused") < 0.1 * NUM_SCHEMAS


def test_pydantic_parse(client, variant):
    class Colour(enum.Enum):
        red = "red"
        blue = "blue"

    class Part(pydantic.BaseModel):
        colour: Colour
        weight: float | None

    class Order(pydantic.BaseModel):
        number: int
        is_paid: bool
        parts: list[Part]

    for seed in range(5):
        try:
            answer = client.chat.completions.parse(model=variant, messages=CHAT, response_format=Order, max_tokens=800,
                                                   temperature=1, seed=seed, logit_bias=CLOSING)
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(answer.choices[0].message.parsed, Order)
        return
    pytest.fail("no answer came to its end")


def test_json_object_with_choices_and_streaming(client, model):
    options = dict(model=model, messages=CHAT, max_tokens=400, temperature=1, seed=3, logit_bias=CLOSING,
                   response_format={"type": "json_object"})
    answer = client.chat.completions.create(**options, n=4)
    whole = [choice.message.content for choice in answer.choices if choice.finish_reason == "stop"]
    assert whole and all(isinstance(json.loads(text), dict) for text in whole)
    chunks = client.chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == answer.choices[0].message.content


@pytest.mark.parametrize("wanted, expression", [
    ({"regex": "[a-f]{4}-(x|y)+z"}, "[a-f]{4}-(x|y)+z"),
    ({"choice": ["yes", "no", "per\u00adhaps"]}, "yes|no|per\u00adhaps"),
    ({"grammar": 'root ::= "<" word ("," word){0,2} ">"\nword ::= [ab]{2}'}, "<[ab]{2}(,[ab]{2}){0,2}>"),
    ({"json": '{"enum": [1, 2]}'}, "1|2"),
])
def test_structured_outputs(client, variant, wanted, expression):
    for seed in range(3):
        for options in ({"temperature": 0}, {"temperature": 1.5}):
            answer = client.completions.create(model=variant, prompt="Well", max_tokens=300, seed=seed, **options,
                                               extra_body={"structured_outputs": wanted})
            assert answer.choices[0].finish_reason == "stop"
            assert re.fullmatch(expression, answer.choices[0].text)


@pytest.mark.parametrize("schema, named", [
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"properties": {"a": {"not": {}}}}, "#/properties/a"),
    ({"$ref": "https://example.org/x"}, "$ref"),
    ({"type": "string", "pattern": "(?!a)"}, "pattern"),
])
def test_what_cannot_be_enforced_is_refused(client, model, schema, named):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, schema, 1)
    assert refused.value.param == "response_format" and named in str(refused.value)


@pytest.mark.parametrize("wanted", [
    {"grammar": "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} r{i + 1} | "a"\n' for i in range(60)) + 'r60 ::= "b" | ""'},
    {"grammar": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}? r{i + 1}? [a-z ]?\n" for i in range(40)) + 'r40 ::= "b" | ""'},
    {"grammar": "root ::= ((([a-z ]{0,900}){0,900}){0,900}){0,900}"}, {"grammar": 'root ::= root root root | "a" | "b" | ""'},
    {"grammar": "root ::= " + '"a"? ' * 4000}, {"regex": "(a*)*" * 800}, {"regex": "(([a-z ]{0,12}){0,12}){0,12}"}],
    ids=["doubled", "doubled or not", "nested runs", "ambiguous", "optional", "stars", "nested expression"])
def test_formats_with_many_readings_hold_up_nobody(client, model, wanted):
    """They end or are refused after so many steps, and others are answered."""
    def follow(_):
        try:
            client.completions.create(model=model, prompt="a", max_tokens=200, extra_body={
                "structured_outputs": wanted, "ignore_eos": True, "logit_bias": {str(ord("a")): 50}})
            return "followed"
        except openai.BadRequestError as error:
            assert "ways" in error.message or "left out" in error.message or "too long" in error.message or "states" in error.message, error
            return "refused"

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        outcomes = pool.map(follow, range(2))
        assert client.completions.create(model=model, prompt="b", max_tokens=4).choices
        assert len(list(outcomes)) == 2


def test_formats_that_are_given_up_are_named(client, model, variant):
    options = dict(model=variant, prompt="a", max_tokens=2000, temperature=0, logit_bias={str(ord("a")): 50}, extra_body={
        "structured_outputs": {"grammar": 'root ::= root root root | "a" | "b" | ""'}, "sharing": {"sender": model}})
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**options)
    assert refused.value.param == "structured_outputs" and "too long to follow" in refused.value.message
    with pytest.raises(openai.APIError) as ended:
        list(client.completions.create(**options, stream=True))
    assert ended.value.param == "structured_outputs" and ended.value.code == "invalid_value"


def test_cut_answers_say_so(client, model):
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=3, response_format={"type": "json_object"},
                                            logit_bias={"125": -100})
    assert answer.choices[0].finish_reason == "length"


def test_min_tokens(client, model):
    options = dict(model=model, prompt="Well", max_tokens=20, temperature=1, seed=1)
    stop = [chr(c) for c in range(97, 101)]
    assert client.completions.create(**options, stop=stop, extra_body={"min_tokens": 20}).usage.completion_tokens == 20
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**options, extra_body={"min_tokens": 21})
    assert refused.value.param == "min_tokens"


def test_prompt_logprobs(client, model):
    echoed = client.completions.create(model=model, prompt="Well then", max_tokens=1, logprobs=2, echo=True, temperature=0)
    answer = client.completions.create(model=model, prompt="Well then", max_tokens=1, temperature=0,
                                       extra_body={"prompt_logprobs": 2})
    scores = answer.choices[0].model_extra["prompt_logprobs"]
    expected = echoed.choices[0].logprobs.token_logprobs[:len(scores)]
    assert scores[0] is None and len(scores) == len("Well then")
    for char, score, logprob in zip("Well then"[1:], scores[1:], expected[1:]):
        own = score[str(ord(char))]
        assert own["logprob"] == pytest.approx(logprob, abs=1e-5) and own["decoded_token"] == char
        assert len(score) in (2, 3)
        assert sum(other["logprob"] > own["logprob"] for other in score.values()) == min(own["rank"] - 1, 2)
    chat = client.chat.completions.create(model=model, messages=CHAT, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert all(len(score) == 1 for score in chat.model_extra["prompt_logprobs"][1:])

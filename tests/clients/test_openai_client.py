"""The openai package, unmodified."""

import asyncio

import openai
import pytest

CHAT = [{"role": "user", "content": "Tell me something."}]


def test_lists_models_with_parents(client, model, variant):
    by_id = {entry.id: entry for entry in client.models.list()}
    assert by_id[model].parent is None
    assert by_id[variant].parent == model
    assert client.models.retrieve(variant).id == variant


def test_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    extra = answer.model_extra["droidspeak"]
    assert set(extra) == {"sender", "plan", "translated", "reused_tokens", "recomputed_layers", "looked_at_tokens",
                          "tier", "ttft_ms", "fallback"}


def test_chat_with_text_parts(client, model):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "more"}]}]
    assert client.chat.completions.create(model=model, messages=parts, max_tokens=2).choices


def test_chat_stream_gives_the_text_of_the_whole_answer(client, variant):
    options = dict(model=variant, messages=CHAT, max_tokens=24, temperature=0.8, seed=11)
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert "droidspeak" in chunks[-1].model_extra
    finished = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert finished[-1] == whole.choices[0].finish_reason
    assert set(finished[:-1]) == {None}


def test_chat_stream_without_usage(client, model):
    chunks = list(client.chat.completions.create(model=model, messages=CHAT, max_tokens=4, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert "droidspeak" in chunks[-1].model_extra


def test_seed_repeats_and_seeds_differ(client, model):
    def text(seed):
        answer = client.completions.create(model=model, prompt="Once", max_tokens=24, temperature=1.5, seed=seed)
        return answer.choices[0].text
    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_greedy_is_the_same_every_time(client, model):
    texts = {client.completions.create(model=model, prompt="Once", max_tokens=16, temperature=0).choices[0].text
             for _ in range(3)}
    assert len(texts) == 1


def test_n_choices(client, model):
    answer = client.chat.completions.create(model=model, messages=CHAT, max_tokens=6, n=3, seed=5, temperature=1.5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    single = client.chat.completions.create(model=model, messages=CHAT, max_tokens=6, seed=6, temperature=1.5)
    assert answer.choices[1].message.content == single.choices[0].message.content
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens


def test_n_choices_streamed(client, model):
    texts = ["", "", ""]
    options = dict(model=model, messages=CHAT, max_tokens=6, n=3, seed=5, temperature=1.5)
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    whole = client.chat.completions.create(**options)
    assert texts == [choice.message.content for choice in whole.choices]


def test_stop_strings(client, model):
    options = dict(model=model, prompt="Once", max_tokens=32, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**options).choices[0].text
    stop = whole[len(whole) // 2:][:3]
    answer = client.completions.create(**options, stop=[stop, "never seen \u2603"])
    assert answer.choices[0].text == whole[:whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stop=stop, stream=True))
    assert streamed == answer.choices[0].text


def test_max_tokens_means_length(client, model):
    answer = client.completions.create(model=model, prompt="Once", max_tokens=5, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_chat_logprobs(client, model):
    answer = client.chat.completions.create(
        model=model, messages=CHAT, max_tokens=5, temperature=0, logprobs=True, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 4
        assert token.logprob <= 0
        assert token.top_logprobs[0].logprob == max(other.logprob for other in token.top_logprobs)
        assert token.top_logprobs[0].logprob == token.logprob  # greedy
    assert b"".join(bytes(token.bytes) for token in content).decode(errors="replace")


def test_chat_logprobs_streamed(client, model):
    options = dict(model=model, messages=CHAT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=1)
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    streamed = []
    for chunk in client.chat.completions.create(**options, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in whole]


def test_completion_logprobs_and_echo(client, model):
    answer = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=1, echo=True, logprobs=1, temperature=0)
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text.startswith("Once upon a time")
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert len(logprobs.tokens) == answer.usage.total_tokens
    assert "".join(logprobs.tokens[:-1]) == "Once upon a time"
    for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
        assert logprob <= 0
        assert max(top.values()) >= logprob
        assert token in top


def test_prompt_lists_and_token_ids(client, model):
    texts = client.completions.create(model=model, prompt=["one", "two"], max_tokens=3, temperature=0)
    assert [choice.index for choice in texts.choices] == [0, 1]
    ids = client.completions.create(model=model, prompt=[[3, 4], [5, 6, 7]], max_tokens=3, temperature=0)
    assert ids.usage.prompt_tokens == 5
    single = client.completions.create(model=model, prompt=[5, 6, 7], max_tokens=3, temperature=0)
    assert single.choices[0].text == ids.choices[1].text


def test_logit_bias_forces_a_token(client, model, server):
    import httpx
    token = httpx.post(server.url + "/tokenize", json={"prompt": "q", "add_special_tokens": False}).json()["tokens"][0]
    answer = client.completions.create(
        model=model, prompt="Once", max_tokens=4, temperature=0, logit_bias={str(token): 100})
    assert answer.choices[0].text == "qqqq"


def test_sharing_extras_are_taken(client, model, variant):
    """What each asks for shows in the answer: another variant's context is used only where it may be."""
    messages = [{"role": "user", "content": "Some words that both have to read. " * 30}]

    def ask(name, **extras):
        answer = client.chat.completions.create(model=name, messages=messages, max_tokens=1, extra_body=extras)
        return answer.model_extra["droidspeak"], answer.usage.prompt_tokens_details.cached_tokens
    ask(model, cache_salt="extras")
    done, cached = ask(variant, cache_salt="extras", sharing={"sender": model, "plan": "reuse"})
    assert done["sender"] == model and done["plan"] == "reuse" and done["recomputed_layers"] == 0 and cached > 100
    for extras in ({"sharing": "off"}, {"min_quality": 1.0}, {"ttft_slo_ms": 1e9, "min_quality": 1.0}):
        salt = f"extras {extras}"
        ask(model, cache_salt=salt)
        done, cached = ask(variant, cache_salt=salt, **extras)
        assert done["sender"] is None and done["plan"] == "full" and cached == 0, extras
    done, cached = ask(variant, cache_salt="nobody else's", sharing={"sender": model, "plan": "auto"})
    assert done["sender"] is None and cached == 0


def test_errors_have_openais_classes(client, model):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nothing", messages=CHAT)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=model, messages=CHAT, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=model, prompt="x", max_tokens=10_000_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(model=model, messages=CHAT, tools=[{"type": "web_search"}])
    assert tools.value.param == "tools[0].type"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=CHAT, response_format={"type": "xml"})


async def test_async_client_runs_many_at_once(server, model):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=120) as client:
        answers = await asyncio.gather(*[
            client.completions.create(model=model, prompt="Once", max_tokens=8, temperature=0) for _ in range(12)])
    assert len({answer.choices[0].text for answer in answers}) == 1


async def test_async_streaming(server, model):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=120) as client:
        stream = await client.chat.completions.create(model=model, messages=CHAT, max_tokens=8, stream=True)
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


async def test_leaving_a_stream_early_frees_the_server(server, model):
    import httpx
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=120) as client:
        stream = await client.completions.create(
            model=model, prompt="Once", max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        async for _ in stream:
            break
        await stream.close()
    for _ in range(200):
        metrics = httpx.get(server.url + "/metrics").text
        if 'vllm:num_requests_running{' in metrics:
            line = next(line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running{"))
            if line.endswith(" 0"):
                return
        await asyncio.sleep(0.05)
    pytest.fail("the request is still running")

"""Embeddings and rerank over a family that declares pooling: the OpenAI client, and the shapes of errors."""

import json
import math
import threading

import httpx
import openai
import pytest

from server_process import Server

TEXTS = ["a b c", "c b a and more", "x"]


@pytest.fixture(scope="module")
def pooled(family):
    """A server whose base is pooled by mean, and whose first variant by the last token."""
    content = json.loads(family.read_text())
    content["base"]["pooling"] = "mean"
    content["variants"][0]["pooling"] = "last"
    content.pop("plan_books", None)
    path = family.parent / "pooled.json"
    path.write_text(json.dumps(content))
    running = Server(path)
    yield running, content["base"]["name"], [entry["name"] for entry in content["variants"]]
    assert running.terminate() == 0


@pytest.fixture(scope="module")
def embedder(pooled):
    return openai.OpenAI(base_url=pooled[0].url + "/v1", api_key="none", max_retries=0, timeout=120)


def length(values):
    return math.sqrt(sum(value * value for value in values))


def test_embeddings(pooled, embedder):
    server, base, variants = pooled
    answer = embedder.embeddings.create(model=base, input=TEXTS)  # the client asks for base64
    assert answer.object == "list" and answer.model == base and [item.index for item in answer.data] == [0, 1, 2]
    assert all(abs(length(item.embedding) - 1) < 1e-5 for item in answer.data)
    floats = embedder.embeddings.create(model=base, input=TEXTS, encoding_format="float")
    for one, other in zip(answer.data, floats.data):
        assert list(one.embedding) == pytest.approx(list(other.embedding), abs=1e-7)
    tokens = [httpx.post(server.url + "/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(ids) for ids in tokens)
    by_tokens = embedder.embeddings.create(model=base, input=tokens)
    assert [item.embedding for item in by_tokens.data] == [item.embedding for item in answer.data]
    last = embedder.embeddings.create(model=variants[0], input=TEXTS[0])
    assert len(last.data) == 1 and list(last.data[0].embedding) != list(answer.data[0].embedding)


def test_one_text_is_as_among_others(pooled, embedder):
    _, base, _ = pooled
    together = embedder.embeddings.create(model=base, input=TEXTS * 8).data
    for index, text in enumerate(TEXTS):
        alone = embedder.embeddings.create(model=base, input=text).data[0].embedding
        assert all(item.embedding == alone for item in together[index::len(TEXTS)])


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_rerank(pooled, embedder, path):
    server, base, _ = pooled
    documents = ["z y", TEXTS[0], {"text": "c b a"}]
    body = {"model": base, "query": TEXTS[0], "documents": documents}
    answer = httpx.post(server.url + path, json=body, timeout=120).json()
    results = answer["results"]
    assert results[0]["index"] == 1 and results[0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    assert results[0]["document"] == {"text": TEXTS[0]}
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True) and {result["index"] for result in results} == {0, 1, 2}
    query, *others = [item.embedding for item in embedder.embeddings.create(
        model=base, input=[TEXTS[0], "z y", TEXTS[0], "c b a"]).data]
    for result in results:
        cosine = sum(a * b for a, b in zip(query, others[result["index"]]))
        assert result["relevance_score"] == pytest.approx(cosine, abs=1e-5)
    best = httpx.post(server.url + path, json={**body, "top_n": 1, "return_documents": False}, timeout=120).json()
    assert [result["index"] for result in best["results"]] == [1] and "document" not in best["results"][0]


def test_scores_are_cosines(pooled):
    """Those of lengths that were rounded are no larger than 1."""
    server, base, _ = pooled
    for text in (chr(97 + i) * (1 + i % 3) for i in range(20)):
        answer = httpx.post(server.url + "/rerank", json={"model": base, "query": text, "documents": [text]}, timeout=120)
        assert 1 - 1e-5 < answer.json()["results"][0]["relevance_score"] <= 1


def test_models_without_pooling_are_refused_by_name(pooled, embedder):
    server, _, variants = pooled
    with pytest.raises(openai.BadRequestError, match="pooling") as caught:
        embedder.embeddings.create(model=variants[1], input="x")
    assert caught.value.param == "model"
    answer = httpx.post(server.url + "/rerank", json={"model": variants[1], "query": "q", "documents": ["d"]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
    with pytest.raises(openai.NotFoundError):
        embedder.embeddings.create(model="nobody", input="x")


@pytest.mark.parametrize("field, value", [
    ("input", ""), ("input", []), ("input", ["a"] * 2049), ("input", [99999999]), ("input", "a b " * 100000),
    ("dimensions", 3), ("encoding_format", "int8"), ("truncate_prompt_tokens", 4)])
def test_bad_fields_are_named(pooled, field, value):
    server, base, _ = pooled
    answer = httpx.post(server.url + "/v1/embeddings", json={"model": base, "input": "a", field: value}, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field, answer.text


def test_a_document_that_is_too_long_is_named(pooled):
    server, base, _ = pooled
    body = {"model": base, "query": "q", "documents": ["d", "a b " * 100000]}
    answer = httpx.post(server.url + "/rerank", json=body, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "documents[1]"


def test_answers_go_on_beside_many_texts(pooled, embedder):
    _, base, _ = pooled
    found = []
    many = threading.Thread(target=lambda: found.append(
        embedder.embeddings.create(model=base, input=["a b c d e f " * 5] * 60)))
    many.start()
    answer = embedder.completions.create(model=base, prompt="a b", max_tokens=5)
    many.join()
    assert answer.usage.completion_tokens <= 5 and len(found[0].data) == 60


def test_embeddings_are_counted_by_model(pooled, embedder):
    server, base, variants = pooled

    def prompt_tokens():
        lines = httpx.get(server.url + "/metrics").text.splitlines()
        found = [line for line in lines if line.startswith("vllm:prompt_tokens_total{")]
        assert {base, *variants} == {line.split('model_name="')[1].split('"')[0] for line in found}
        return {line.split('model_name="')[1].split('"')[0]: float(line.split()[-1]) for line in found}

    before = prompt_tokens()
    used = embedder.embeddings.create(model=variants[0], input="a b c").usage.prompt_tokens
    after = prompt_tokens()
    assert after[variants[0]] == before[variants[0]] + used and after[base] == before[base]

"""Where the real HAProxy sends requests with the configuration of deploy/."""

import collections
import json
import pathlib
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from front import CONFIG, HAPROXY, Front, environment, request  # noqa: E402

SYSTEM = {"role": "system", "content": "You are a helpful assistant. Read the documents and do what the user asks."}


@pytest.fixture
def front(tmp_path):
    running = Front(tmp_path / "haproxy.log")
    yield running
    running.stop()


def context(number, num_bytes=8000):
    sentence = f"Document {number} says that the answer to question {number} is {number * 7919}. "
    return (sentence * (num_bytes // len(sentence) + 1))[:num_bytes]


def chat(model, text, question="Why?", **fields):
    return {"model": model, "messages": [SYSTEM, {"role": "user", "content": f"{text}\n\n{question}"}], **fields}


def test_the_configuration_is_accepted():
    checked = subprocess.run([HAPROXY, "-c", "-f", CONFIG], capture_output=True, text=True,
                             env=environment("127.0.0.1:1", "127.0.0.1:2", ["127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"]))
    assert checked.returncode == 0 and "WARNING" not in checked.stderr, checked.stderr


def test_a_name_that_is_not_there_yet_keeps_nobody_from_starting():
    checked = subprocess.run([HAPROXY, "-c", "-f", CONFIG], capture_output=True, text=True,
                             env=environment("127.0.0.1:1", "127.0.0.1:2", ["127.0.0.1:3", "127.0.0.1:4", "no-such-name.invalid:5"]))
    assert checked.returncode == 0, checked.stderr


def test_variants_on_one_context_go_to_one_server(front):
    for number in range(12):
        text = context(number)
        bodies = [chat("base", text), chat("qa", text, "Who signed it?"), chat("sentiment", text, "Is it good?", temperature=0, max_tokens=7),
                  {"max_tokens": 3, "stream": False, **chat("a-rather-long-name-of-a-variant", text, "When?")},
                  {"messages": chat("", text, "And then?")["messages"], "model": "math", "user": "someone"}]
        assert len({front.server_of(body) for body in bodies}) == 1, number


@pytest.mark.parametrize("field,path", [("prompt", "/v1/completions"), ("input", "/v1/responses")])
def test_raw_prompts_have_a_context_too(front, field, path):
    for number in range(4):
        names = {front.server_of({"model": model, field: context(number) + question}, path=path) for model, question in
                 [("base", "Why?"), ("qa", "Who?"), ("math", "How many?")]}
        assert len(names) == 1


def test_bodies_larger_than_the_buffer_have_a_context_too(front):
    text = context(1, 300_000)
    bodies = [chat(model, text, question) for model, question in [("base", "Why?"), ("qa", "Who?"), ("math", "Where?")]]
    assert len({front.server_of(body) for body in bodies}) == 1
    status, _, answer = front.post(bodies[0])
    assert status == 200 and answer["bytes"] > 300_000, "the whole body arrives"


def test_different_contexts_spread(front):
    counts = collections.Counter(front.server_of(chat("base", context(number))) for number in range(90))
    assert len(counts) == 3
    assert min(counts.values()) >= 9, counts


def test_short_requests_leave_the_model_out_as_well(front):
    for number in range(6):
        assert len({front.server_of(chat(model, f"Text {number}.")) for model in ("base", "qa", "sentiment")}) == 1


def test_a_client_may_name_its_context(front):
    names = {front.server_of(chat("base", context(number)), **{"X-DroidSpeak-Context": "contract-17"}) for number in range(10)}
    assert len(names) == 1
    named = {front.server_of(chat("base", "x"), **{"X-DroidSpeak-Context": f"contract-{number}"}) for number in range(30)}
    assert len(named) == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[1, 2]", b'"messages"', b"\xff\xfe\x00" * 100, b'{"messages": 3}', json.dumps({"model": '"messages":"'}).encode()])
def test_any_body_reaches_a_server(front, body):
    status, name, answer = front.post(body)
    assert status == 200 and name and answer["bytes"] == len(body)


def test_hosts_are_the_clients_own(front):
    """The servers check them against pages of other sites."""
    _, _, answer = front.post(chat("base", "x"), Host="models.example")
    assert answer["host"] == "models.example"


def test_load_is_bounded(front):
    """One context that everybody asks for does not stay on one server when that has too much to do."""
    for backend in front.backends.values():
        backend.may_answer.clear()
    body = chat("base", context(5))
    results = []
    threads = [threading.Thread(target=lambda: results.append(front.post(body)[:2])) for _ in range(24)]
    for thread in threads:
        thread.start()
    front.wait_for(lambda: sum(backend.num_running for backend in front.backends.values()) == 24)
    most = max(backend.num_running for backend in front.backends.values())
    for backend in front.backends.values():
        backend.may_answer.set()
    for thread in threads:
        thread.join()
    assert most <= 17, f"{most} of 24 on one server; twice its share is 16"
    assert len(results) == 24 and {status for status, _ in results} == {200}


def test_a_draining_server_gets_no_more_and_finishes_what_it_has(front):
    body = chat("base", context(3))
    name = front.server_of(body)
    backend = front.backends[name]
    backend.may_answer.clear()
    results = []
    running = threading.Thread(target=lambda: results.append(front.post(body)[:2]))
    running.start()
    front.wait_for(lambda: backend.num_running == 1)
    backend.is_draining = True
    status, other, _ = front.post(body)  # before a health check has told HAProxy
    assert status == 200 and other != name
    front.wait_for(lambda: front.states().count("DOWN") == 1)
    refused = backend.num_refused
    assert front.post(body)[0] == 200
    assert backend.num_refused == refused, "nothing more is sent to it"
    backend.may_answer.set()
    running.join()
    assert results == [(200, name)]
    backend.is_draining = False
    front.wait_for(lambda: front.states() == ["UP"] * 3, 30)
    assert front.server_of(body) == name, "and it gets its contexts back"


def test_a_dead_server_costs_nothing_but_its_caches(front):
    bodies = [chat("base", context(number)) for number in range(30)]
    before = [front.server_of(body) for body in bodies]
    gone = before[0]
    front.backends[gone].stop()
    after = [front.server_of(body) for body in bodies]
    assert gone not in after
    assert all(new == old for old, new in zip(before, after) if old != gone), "the others keep their contexts"


def test_metrics_are_those_of_haproxy_alone(front):
    for path in ("/metrics", "/%6detrics"):
        assert request(front.port, "GET", path)[0] == 404, path
    status, _, text = request(front.stats_port, "GET", "/metrics")
    assert status == 200 and b"haproxy_server_status" in text
    assert request(front.stats_port, "GET", "/health")[0] == 200


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/%6coad_lora_adapter"])
def test_adapters_are_not_changed_on_one_server_only(front, path):
    assert request(front.port, "POST", path)[0] == 403

"""Requests that ask for much of everything: answered or refused, and the server's memory stays bounded."""

import concurrent.futures
import contextlib
import json
import re
import socket

import httpx
import pytest

from server_process import Server

MOST_GROWTH = 256 << 20


@pytest.fixture(scope="module")
def large_server(family):
    server = Server(family)
    yield server
    assert server.terminate() == 0


def forget_peak(server):
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as file:
        file.write("5")


def peak_bytes(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) << 10


def hostile_bodies(model):
    prompts = ["x"] * 2048
    yield "large stop", {"prompt": prompts, "stop": "s" * (4 << 20)}, 400
    yield "large salt", {"prompt": prompts, "cache_salt": "s" * (4 << 20)}, 400
    yield "many stop tokens", {"prompt": prompts, "stop_token_ids": [1] * 1_000_000}, 400
    yield "all of them", {"prompt": prompts, "stop": ["s" * (4 << 20)], "cache_salt": "s" * (4 << 20), "stop_token_ids": [1] * 900_000}, 400
    yield "large user", {"prompt": prompts, "user": "u" * (8 << 20)}, 400
    yield "large model", {"prompt": prompts, "model": "m" * (8 << 20)}, 400
    yield "all at their limits", {
        "prompt": prompts, "stop": [letter * 512 for letter in "abcd"], "cache_salt": "s" * 256, "user": "u" * 512,
        "stop_token_ids": list(range(250)) * 4, "logit_bias": {str(token): -1 for token in range(250)}}, 200
    yield "long prompts", {"prompt": ["y" * 15_000] * 2000}, 400
    yield "echo of many choices", {"prompt": ["y" * 4000] * 16, "n": 128, "echo": True}, 400
    yield "logprobs of many choices", {"prompt": ["y" * 100] * 16, "n": 128, "logprobs": 20, "max_tokens": 3000}, 400
    yield "many values", {"prompt": prompts, "anything": [{}] * 500_000}, 200
    yield "many keys", {"prompt": "x", "anything": {str(i): i for i in range(260_000)}}, 200
    yield "long unknown text", {"prompt": "x", "anything": "t" * (30 << 20)}, 200


CASES = [name for name, _, _ in hostile_bodies("")]


def fill_what_was_granted(server):
    """K/V memory and caches are taken from the system as they are first used: by prompts that nobody has sent before,
    until they take no more of it."""
    still, most = 0, 0
    for number in range(2000):
        body = {"model": "base", "prompt": [number % 250, number // 250 + 1] + [7] * 1500, "max_tokens": 1}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=120).status_code == 200
        still = still + 1 if server.resident_bytes() < most + (64 << 10) else 0
        most = max(most, server.resident_bytes())
        if still == 12:
            return
    raise RuntimeError(f"the server still grows: {most >> 20} MiB")


@pytest.fixture(scope="module")
def first_peak(large_server):
    """What the process takes before anything is asked of it, with all that it was told it may take."""
    fill_what_was_granted(large_server)
    return peak_bytes(large_server)


@pytest.mark.parametrize("case", CASES)
def test_memory_is_bounded_whatever_is_asked(large_server, first_peak, case):
    model = httpx.get(large_server.url + "/v1/models").json()["data"][0]["id"]
    name, fields, status = next(body for body in hostile_bodies(model) if body[0] == case)
    body = json.dumps({"model": model, "max_tokens": 1, **fields})

    def send(_):
        return httpx.post(large_server.url + "/v1/completions", content=body, headers={"Content-Type": "application/json"}, timeout=300)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(send, range(3)))
    statuses = {answer.status_code for answer in answers}  # 503: no room for another body
    assert status in statuses and statuses <= {status, 429, 503}, (name, answers[0].text[:300])
    assert all(answer.json()["error"]["param"] for answer in answers if answer.status_code == 400), name
    grown = peak_bytes(large_server) - first_peak  # by all cases so far
    assert grown < MOST_GROWTH, f"{name}: {grown >> 20} MiB more at the peak"


@pytest.mark.parametrize("value,what", [("1." + "25" * 13, "65536 decimal"), ('"' + "t" * 27 + '"', "262144 texts")], ids=["decimals", "texts"])
def test_values_that_take_much_are_few(large_server, first_peak, value, what):
    body = '{"model": "base", "prompt": "x", "max_tokens": 1, "anything": [%s]}' % ",".join([value] * 1_040_000)

    def send(_):
        answer = httpx.post(large_server.url + "/v1/completions", content=body, headers={"Content-Type": "application/json"}, timeout=300)
        assert answer.status_code == 503 or what in answer.json()["error"]["message"], answer.text[:300]
        return answer.status_code
    assert 400 in growth_while(large_server, first_peak, send, 3)


@pytest.mark.parametrize("path,fields", [
    ("/v1/completions", {"model": "base", "prompt": "x", "max_tokens": 1}), ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "x"})])
def test_many_large_bodies_at_once(large_server, first_peak, path, fields):
    """More than all bodies together may take: those that find no room hear so."""
    body = json.dumps({**fields, "anything": "t" * (31 << 20)})

    def send(_):
        return httpx.post(large_server.url + path, content=body, headers={"Content-Type": "application/json"}, timeout=300)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = {answer.status_code for answer in pool.map(send, range(8))}
    assert statuses <= {200, 400, 503} and statuses != {503}
    grown = peak_bytes(large_server) - first_peak
    assert grown < MOST_GROWTH, f"{grown >> 20} MiB more at the peak"


def growth_while(server, first_peak, send, count):
    """Statuses of requests sent at once, None for those that were not answered in time; checks the peak."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        statuses = list(pool.map(send, range(count)))
    grown = peak_bytes(server) - first_peak
    assert grown < MOST_GROWTH, f"{grown >> 20} MiB more at the peak"
    return set(statuses)


def statuses_of_streams(server, bodies):
    """Begins one stream after the other without reading any, until one is refused."""
    statuses = []
    with contextlib.ExitStack() as streams:
        for body in bodies:
            answer = streams.enter_context(httpx.stream("POST", server.url + "/v1/completions", json={**body, "stream": True}, timeout=60))
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                break
    return statuses


def test_logprobs_of_many_requests(large_server, first_peak):
    body = {"model": "base", "prompt": "x", "n": 120, "max_tokens": 100, "logprobs": 20, "ignore_eos": True}

    def send(_):
        return httpx.post(large_server.url + "/v1/completions", json=body, timeout=120).status_code
    assert growth_while(large_server, first_peak, send, 8) <= {200, 429}
    body["max_tokens"] = 110
    assert send(0) == 400
    long_body = {**body, "n": 3, "max_tokens": 4000}
    assert statuses_of_streams(large_server, [long_body] * 8) == [200] * 4 + [429]


def test_logprobs_without_max_tokens_end_at_their_limit(large_server, first_peak):
    body = {"model": "base", "messages": [{"role": "user", "content": "x"}], "n": 128, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}

    def send(_):
        answer = httpx.post(large_server.url + "/v1/chat/completions", json=body, timeout=240)
        if answer.status_code == 200:
            assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"length"}
            assert answer.json()["usage"]["completion_tokens"] == (1 << 18) // (21 * 128) * 128
        return answer.status_code
    assert send(0) == 200
    forget_peak(large_server)
    before = peak_bytes(large_server)
    assert growth_while(large_server, first_peak, send, 6) <= {200, 429}  # four hold all values there may be
    grown = peak_bytes(large_server) - before
    assert grown < 48 << 20, f"{grown >> 20} MiB more: 12416 tokens with their alternatives are 64 MiB of text in four answers"


def test_prompts_of_many_requests(large_server, first_peak):
    """Different prompts, as many as one request may bring; the clients leave before all are read."""
    def body(index):
        return {"model": "base", "prompt": [[index, i % 200, i // 200] + [7] * 497 for i in range(2048)], "max_tokens": 1}
    equal = {"model": "base", "prompt": [[7] * 500] * 2048, "max_tokens": 1}  # one after the other: they hardly fill the queue
    assert statuses_of_streams(large_server, [equal] * 12) == [200] * 6 + [429]
    assert statuses_of_streams(large_server, map(body, range(12)))[-1] == 429  # the queue or the budget is full
    grown = peak_bytes(large_server) - first_peak
    assert grown < MOST_GROWTH, f"{grown >> 20} MiB more at the peak"


def head_of(method, path, body=b""):
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def statuses_of_held_answers(server, first_peak, request, count):
    """Of clients that send it and take no more of the answer than its status."""
    statuses = []
    with contextlib.ExitStack() as held:
        for _ in range(count):
            client = held.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            client.connect(("127.0.0.1", server.port))
            client.sendall(request)
            statuses.append(int(client.recv(12)[9:]))
        grown = peak_bytes(server) - first_peak
    assert grown < MOST_GROWTH, f"{grown >> 20} MiB more at the peak"
    return statuses


def test_answers_that_nobody_takes(large_server, first_peak):
    """They are counted until they are taken, or are there once for all."""
    end = httpx.get(large_server.url + "/tokenizer_info").json()["eos_token"]
    tokens = httpx.post(large_server.url + "/tokenize", json={"prompt": end, "add_special_tokens": False}).json()["tokens"]
    many = json.dumps({"tokens": tokens * (6_000_000 // len(end))}).encode()  # 6 of 32 MiB each
    statuses = statuses_of_held_answers(large_server, first_peak, head_of("POST", "/detokenize", many), 30)
    assert statuses[:6] == [200] * 5 + [429]
    assert set(statuses) == {200, 429}  # on a slow machine clients are given up meanwhile, and there is room again
    text = json.dumps({"prompt": "y" * 4000, "return_token_strs": True}).encode()
    assert set(statuses_of_held_answers(large_server, first_peak, head_of("POST", "/tokenize", text), 900)) <= {200, 429}
    for path in ("/chart.js", "/v1/droidspeak/plan_books", "/metrics"):
        assert set(statuses_of_held_answers(large_server, first_peak, head_of("GET", path), 900)) == {200}


def test_texts_that_answers_repeat_are_bounded(large_server):
    end = httpx.get(large_server.url + "/tokenizer_info").json()["eos_token"]
    tokens = httpx.post(large_server.url + "/tokenize", json={"prompt": end, "add_special_tokens": False}).json()["tokens"]
    answer = httpx.post(large_server.url + "/detokenize", json={"tokens": tokens * 1_000_000}, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tokens"
    body = {"model": "base", "prompt": [tokens * 4000] * 250, "echo": True, "max_tokens": 1}
    answer = httpx.post(large_server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "echo"


def test_a_long_word(large_server, first_peak):
    def send(_):
        body = {"model": "base", "prompt": "y" * (16 << 20)}
        return httpx.post(large_server.url + "/v1/completions", json=body, timeout=60).status_code
    assert growth_while(large_server, first_peak, send, 4) <= {400, 503, 408}  # 408: on a slow machine it comes too slowly


def write_adapter(folder, header, config):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return folder


@pytest.mark.parametrize("header,config,message", [
    ("{%s}" % ",".join(f'"{i:07}":{{}}' for i in range(80_000)), '{"r": 2}', "header length"),
    ("{%s}" % ",".join(f'"{i:05}":{{}}' for i in range(5_000)), '{"r": 2}', "dtype"),
    ("{}", '{"r": 2, "rank_pattern": {%s}}' % ",".join(f'"{i}":1' for i in range(90_000)), "16384 keys")],
    ids=["long header", "many entries", "many keys"])
def test_adapters_of_many_entries(large_server, first_peak, family, tmp_path, header, config, message):
    folder = write_adapter(family.parent / tmp_path.name, header, config)

    def send(index):
        answer = httpx.post(large_server.url + "/v1/load_lora_adapter", json={"lora_name": f"many{index}", "lora_path": folder.name}, timeout=20)
        assert answer.status_code == 429 or message in answer.json()["error"]["message"], answer.text[:300]
        return answer.status_code
    assert growth_while(large_server, first_peak, send, 4) <= {400, 429}


def test_template_arguments_are_bounded(large_server):
    def ask(path, arguments):
        body = {"model": "base", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template_kwargs": arguments}
        return httpx.post(large_server.url + path, json=body, timeout=60)
    for path in ("/v1/chat/completions", "/tokenize"):
        for arguments in ({f"key{i}": i for i in range(60_000)}, {"a": "x" * (1 << 20)}, {"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}):
            answer = ask(path, arguments)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "chat_template_kwargs"
        assert ask(path, {f"key{i}": i for i in range(200)}).status_code == 200
        for own in ("messages", "tools", "bos_token", "eos_token"):
            answer = ask(path, {own: "x"})
            assert answer.status_code == 400 and f"'{own}'" in answer.json()["error"]["message"], answer.text

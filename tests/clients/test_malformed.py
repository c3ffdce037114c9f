"""Broken and hostile requests: the documented status and an OpenAI error body each, nothing hangs, memory stays flat."""

import json
import socket
import threading
import time

import pytest

OK_CHAT = {"model": "?", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
OK_TEXT = {"model": "?", "prompt": "hi", "max_tokens": 1}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LOAD = "/v1/load_lora_adapter"


class Raw:
    """A connection that sends exactly what it is told."""

    def __init__(self, port, timeout=40):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)

    def send(self, data):
        try:
            self.socket.sendall(data if isinstance(data, bytes) else data.encode())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server has answered already
        return self

    def half_close(self):
        self.socket.shutdown(socket.SHUT_WR)
        return self

    def answer(self):
        """(status, headers, body) of the one answer on this connection."""
        data = b""
        with self.socket:
            while True:
                head, found, body = data.partition(b"\r\n\r\n")
                if found:
                    lines = head.decode("latin-1").split("\r\n")
                    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                    if len(body) >= int(headers.get("content-length", 0)):
                        return int(lines[0].split()[1]), headers, body
                piece = self.socket.recv(65536)
                if not piece:
                    raise AssertionError(f"closed without an answer: {data!r}")
                data += piece


def post(path, body, extra=""):
    data = body if isinstance(body, bytes) else body.encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data


def check_error(answer, status, param=None, code=...):
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"].startswith("application/json")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    if isinstance(param, str) and param.endswith("*"):
        assert error["param"].startswith(param[:-1]), error
    else:
        assert error["param"] == param, error
    if code is not ...:
        assert error["code"] == code, error
    return error


@pytest.fixture(scope="module", autouse=True)
def flat_memory(server, client, model):
    """After all of it the server answers and has not grown."""
    client.completions.create(model=model, prompt="warm up", max_tokens=4)
    before = server.resident_bytes()
    yield
    assert client.completions.create(model=model, prompt="still there", max_tokens=2).choices
    time.sleep(0.5)
    assert server.process.poll() is None
    grown = server.resident_bytes() - before
    assert grown < 64 << 20, f"{grown / 2**20:.0f} MiB more than before"


BROKEN_JSON = {
    "empty": b"",
    "not json": b"hello",
    "unterminated object": b'{"model": "x"',
    "unterminated string": b'{"model": "x',
    "trailing comma": b'{"model": "x",}',
    "single quotes": b"{'model': 'x'}",
    "two documents": b"{} {}",
    "bare key": b"{model: 1}",
    "NaN": b'{"model": "x", "prompt": "x", "temperature": NaN}',
    "Infinity": b'{"model": "x", "prompt": "x", "temperature": Infinity}',
    "number too large": b'{"model": "x", "prompt": "x", "temperature": 1e999}',
    "leading zero": b'{"model": "x", "n": 01}',
    "comment": b'{"model": "x" /* no */}',
    "control character": b'{"model": "a\x01b"}',
    "null byte": b'\x00{"model": "x"}',
    "invalid utf-8": b'{"model": "x", "prompt": "\xff\xfe"}',
    "overlong utf-8": b'{"model": "x", "prompt": "\xc0\xaf"}',
    "truncated utf-8": b'{"model": "x", "prompt": "\xe2\x82"}',
    "utf-8 surrogate": b'{"model": "x", "prompt": "\xed\xa0\x80"}',
    "lone surrogate escape": b'{"model": "x", "prompt": "\\ud800"}',
    "bad escape": b'{"model": "x", "prompt": "\\x41"}',
    "utf-16": '{"model": "x"}'.encode("utf-16"),
    "array": b"[]",
    "string": b'"model"',
    "number": b"1",
    "null": b"null",
    "deep arrays": b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
    "deep objects": b'{"a":' * 100 + b"1" + b"}" * 100,
    "very deep": b"[" * 1_000_000,
    "many values": b'{"a": [' + b"0," * 2_000_000 + b"0]}",
    "many objects": b'{"a": [' + b"{}," * 2_000_000 + b"{}]}",
    "many keys": b"{" + b",".join(b'"%d":1' % i for i in range(1_100_000)) + b"}",
}


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", LOAD])
@pytest.mark.parametrize("name", BROKEN_JSON)
def test_broken_json(server, path, name):
    check_error(Raw(server.port).send(post(path, BROKEN_JSON[name])).answer(), 400, None, None)


BOTH = [
    ("model", 5, "model"), ("model", None, "model"), ("model", ["x"], "model"),
    ("temperature", "hot", "temperature"), ("temperature", -0.5, "temperature"), ("temperature", 2.5, "temperature"),
    ("temperature", [1], "temperature"), ("temperature", 10**400, None),
    ("top_p", 0, "top_p"), ("top_p", 1.5, "top_p"), ("top_p", "x", "top_p"),
    ("top_k", -2, "top_k"), ("top_k", 1.5, "top_k"), ("min_p", -1, "min_p"),
    ("n", 0, "n"), ("n", 129, "n"), ("n", "2", "n"), ("n", 1.5, "n"), ("n", True, "n"),
    ("max_tokens", 0, "max_tokens"), ("max_tokens", -5, "max_tokens"), ("max_tokens", "10", "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"), ("max_tokens", 2**70, "max_tokens"), ("max_tokens", {}, "max_tokens"),
    ("stop", 5, "stop"), ("stop", "", "stop"), ("stop", ["a", ""], "stop"), ("stop", ["a", 1], "stop"),
    ("stop", ["a", "b", "c", "d", "e"], "stop"), ("stop", {}, "stop"),
    ("seed", "x", "seed"), ("seed", 1.5, "seed"),
    ("presence_penalty", 2.5, "presence_penalty"), ("frequency_penalty", "x", "frequency_penalty"),
    ("repetition_penalty", 0, "repetition_penalty"),
    ("logit_bias", [], "logit_bias"), ("logit_bias", {"x": 1}, "logit_bias"), ("logit_bias", {"1": 101}, "logit_bias"),
    ("logit_bias", {"1": None}, "logit_bias"), ("logit_bias", {"999999999": 1}, "logit_bias"),
    ("stream", "yes", "stream"), ("stream", 1, "stream"),
    ("stream_options", {"include_usage": True}, "stream_options"), ("stream_options", 1, "stream_options"),
    ("user", 1, "user"), ("cache_salt", 1, "cache_salt"),
    ("sharing", "maybe", "sharing"), ("sharing", 1, "sharing"), ("sharing", {"plan": "reuse"}, "sharing*"),
    ("sharing", {"sender": "nobody", "plan": "reuse"}, "sharing"),
    ("sharing", {"sender": "base", "plan": "3,2,1"}, "sharing*"),
    ("sharing", {"sender": "base", "plan": "sideways"}, "sharing*"),
    ("ttft_slo_ms", "soon", "ttft_slo_ms"), ("ttft_slo_ms", -1, "ttft_slo_ms"),
    ("min_quality", 2, "min_quality"), ("min_quality", "good", "min_quality"),
    ("tools", [{"type": "function"}], "tools*"), ("tools", "x", "tools"),
    ("response_format", {"type": "json_schema"}, "response_format*"), ("response_format", {"type": 1}, "response_format*"),
    ("tool_choice", "required", "tool_choice"), ("ignore_eos", "x", "ignore_eos"),
    ("stop_token_ids", ["x"], "stop_token_ids"), ("stop_token_ids", [10**9], "stop_token_ids"),
]
CHAT_ONLY = [
    ("messages", None, "messages"), ("messages", [], "messages"), ("messages", "hi", "messages"),
    ("messages", {"role": "user"}, "messages"), ("messages", ["hi"], "messages*"), ("messages", [{}], "messages*"),
    ("messages", [{"role": "user"}], "messages*"), ("messages", [{"content": "x"}], "messages*"),
    ("messages", [{"role": "robot", "content": "x"}], "messages*"),
    ("messages", [{"role": "user", "content": 5}], "messages*"),
    ("messages", [{"role": "user", "content": None}], "messages*"),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages*"),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages*"),
    ("logprobs", 1, "logprobs"), ("top_logprobs", 5, "top_logprobs"), ("top_logprobs", 21, "top_logprobs"),
    ("max_completion_tokens", 0, "max_completion_tokens"),
]
TEXT_ONLY = [
    ("prompt", None, "prompt"), ("prompt", "", "prompt"), ("prompt", [], "prompt"), ("prompt", [[]], "prompt"),
    ("prompt", 5, "prompt"), ("prompt", {}, "prompt"), ("prompt", [-1], "prompt"), ("prompt", [1.5], "prompt"),
    ("prompt", [10**9], "prompt"), ("prompt", [2**40], "prompt"), ("prompt", ["a", 1], "prompt"),
    ("prompt", [1, "a"], "prompt"), ("prompt", ["x"] * 2049, "prompt"),
    ("logprobs", 21, "logprobs"), ("logprobs", -1, "logprobs"), ("logprobs", True, "logprobs"), ("echo", "x", "echo"),
    ("suffix", "x", "suffix"), ("best_of", 5, "best_of"),
]


@pytest.mark.parametrize("path,field,value,param",
                         [(CHAT, *case) for case in BOTH + CHAT_ONLY] + [(TEXT, *case) for case in BOTH + TEXT_ONLY])
def test_wrong_field(server, model, path, field, value, param):
    body = {**(OK_CHAT if path == CHAT else OK_TEXT), "model": model, field: value}
    check_error(Raw(server.port).send(post(path, json.dumps(body))).answer(), 400, param)


def test_missing_fields(server, model):
    for path, body, param in [(CHAT, {"messages": OK_CHAT["messages"]}, "model"), (CHAT, {"model": model}, "messages"),
                              (TEXT, {"model": model}, "prompt"), ("/tokenize", {}, "prompt"), ("/detokenize", {}, "tokens"),
                              (LOAD, {"lora_name": "x"}, "lora_path"), ("/v1/unload_lora_adapter", {}, "lora_name")]:
        check_error(Raw(server.port).send(post(path, json.dumps(body))).answer(), 400, param, "missing_required_parameter")


def test_unknown_model(server):
    for path, body in [(CHAT, OK_CHAT), (TEXT, OK_TEXT), ("/tokenize", OK_TEXT)]:
        body = {**body, "model": "../../etc/passwd"}
        check_error(Raw(server.port).send(post(path, json.dumps(body))).answer(), 404, "model", "model_not_found")


def test_too_long_prompts(server, model):
    for path, body, param in [(TEXT, {**OK_TEXT, "prompt": "word " * 200_000}, "prompt"),
                              (TEXT, {**OK_TEXT, "prompt": [1] * 100_000}, "prompt"),
                              (CHAT, {**OK_CHAT, "messages": [{"role": "user", "content": "word " * 200_000}]}, "messages"),
                              (TEXT, {**OK_TEXT, "max_tokens": 2_000_000_000}, "prompt")]:
        body["model"] = model
        check_error(Raw(server.port).send(post(path, json.dumps(body))).answer(), 400, param, "context_length_exceeded")


def test_many_choices_of_many_prompts_cost_no_memory(server, model):
    """2048 prompts times 128 choices times a large bias would be hundreds of gigabytes if each choice had its own."""
    bias = {str(token): 1 for token in range(300)}
    body = {**OK_TEXT, "model": model, "prompt": ["x"] * 2048, "n": 128, "logit_bias": bias}
    check_error(Raw(server.port).send(post(TEXT, json.dumps(body))).answer(), 400, "n")
    body = {**body, "prompt": ["x" * 1000] * 16, "max_tokens": 3000}
    before = server.resident_bytes()
    for _ in range(8):  # they leave while their choices wait
        Raw(server.port).send(post(TEXT, json.dumps(body))).socket.close()
    assert Raw(server.port).send(post(TEXT, json.dumps({**OK_TEXT, "model": model}))).answer()[0] == 200
    assert server.resident_bytes() - before < 64 << 20


def test_duplicate_keys_and_unknown_fields(server, model):
    body = f'{{"model": "{model}", "prompt": "x", "max_tokens": -1, "max_tokens": 1, "no_such_field": {{"a": [1]}}}}'
    assert Raw(server.port).send(post(TEXT, body)).answer()[0] == 200


ADAPTER_PATHS = ["..", "../..", "/", "/etc", "/etc/passwd", "adapters/../../..", "./../x", "a\0b", "", "no/such/folder",
                 "/proc/self/cwd", "~/x", "file:///etc", "\\..\\..", "%2e%2e/"]


@pytest.mark.parametrize("path", ADAPTER_PATHS)
def test_adapter_path_tricks(server, path):
    body = json.dumps({"lora_name": "trick", "lora_path": path})
    check_error(Raw(server.port).send(post(LOAD, body)).answer(), 400, "lora_path")


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "a/b", "a\0b", "a\nb", "x" * 200, "\u202e", "a b", "/etc"])
def test_adapter_name_tricks(server, name):
    body = json.dumps({"lora_name": name, "lora_path": "x"})
    check_error(Raw(server.port).send(post(LOAD, body)).answer(), 400, "lora_name")


@pytest.mark.parametrize("method,path,allow", [
    ("GET", CHAT, "POST"), ("PUT", CHAT, "POST"), ("DELETE", TEXT, "POST"), ("PATCH", TEXT, "POST"),
    ("POST", "/v1/models", "GET"), ("DELETE", "/v1/models/base", "GET"), ("POST", "/health", "GET"),
    ("POST", "/metrics", "GET"), ("TRACE", "/", "GET"), ("BREW", CHAT, "POST")])
def test_wrong_verbs(server, method, path, allow):
    answer = Raw(server.port).send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").answer()
    check_error(answer, 405, None, "method_not_supported")
    assert allow.lower() in answer[1]["allow"]


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/../etc/passwd", "/v1/models/",
                                  "/..%2f..%2fetc/passwd", "/app.js/", "/%00", "//", "/V1/MODELS"])
def test_unknown_paths(server, path):
    check_error(Raw(server.port).send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").answer(), 404, None, "unknown_url")


HOST = b"Host: 127.0.0.1\r\n"
TOKENIZE = b"POST /tokenize HTTP/1.1\r\n" + HOST
HEALTH = b"GET /health HTTP/1.1\r\n"
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

HEADS = {
    "nonsense": (b"nonsense\r\n\r\n", 400),
    "binary": (bytes(range(1, 10)) * 20 + b"\r\n\r\n", 400),
    "tls hello on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n\n" + b"\r\n\r\n", 400),
    "no version": (b"GET /health\r\n\r\n", 400),
    "wrong version": (b"GET /health HTTP/3.0\r\n\r\n", 505),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "lower-case method": (b"get /health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "absolute target": (b"GET http://x/health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "target without slash": (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "fragment": (b"GET /health#x HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "bad escape": (b"GET /health%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "two spaces": (b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "leading empty line": (b"\r\n" + SMUGGLED, 400),
    "no host": (HEALTH + b"\r\n", 400),
    "two hosts": (HEALTH + HOST + b"Host: y\r\n\r\n", 400),
    "host with a path": (HEALTH + b"Host: x/y\r\n\r\n", 400),
    "bare lf": (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
    "one bare lf": (HEALTH + HOST + b"X: 1\nY: 2\r\n\r\n", 400),
    "bare cr": (HEALTH + HOST + b"X: 1\rY: 2\r\n\r\n", 400),
    "space before the colon": (HEALTH + HOST + b"X : 1\r\n\r\n", 400),
    "tab before the colon": (HEALTH + HOST + b"X\t: 1\r\n\r\n", 400),
    "folded line": (HEALTH + HOST + b"X: 1\r\n 2\r\n\r\n", 400),
    "line without colon": (HEALTH + HOST + b"X\r\n\r\n", 400),
    "empty name": (HEALTH + HOST + b": 1\r\n\r\n", 400),
    "name with a bracket": (HEALTH + HOST + b"X(1): 1\r\n\r\n", 400),
    "name with umlaut": (HEALTH + HOST + b"X\xfc: 1\r\n\r\n", 400),
    "null byte": (HEALTH + HOST + b"X: a\x00b\r\n\r\n", 400),
    "control character": (HEALTH + HOST + b"X: a\x01b\r\n\r\n", 400),
    "two content types": (TOKENIZE + b"Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n", 400),
    "two keys": (HEALTH + HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400),
    "two origins": (HEALTH + HOST + b"Origin: a\r\nOrigin: b\r\n\r\n", 400),
    "long request line": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 414),
    "endless request line": (b"GET /" + b"a" * 200_000, 414),
    "long header": (HEALTH + b"X: " + b"a" * 100_000 + b"\r\n\r\n", 431),
    "header flood": (HEALTH + b"".join(b"X-%d: 1\r\n" % i for i in range(10_000)) + b"\r\n", 431),
    "large head": (HEALTH + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(100)) + b"\r\n", 431),
    "negative length": (TOKENIZE + b"Content-Length: -1\r\n\r\n", 400),
    "signed length": (TOKENIZE + b"Content-Length: +2\r\n\r\n{}", 400),
    "hexadecimal length": (TOKENIZE + b"Content-Length: 0x2\r\n\r\n{}", 400),
    "no number as length": (TOKENIZE + b"Content-Length: many\r\n\r\n", 400),
    "two lengths": (TOKENIZE + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
    "the same length twice": (TOKENIZE + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "list of lengths": (TOKENIZE + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "length and chunked": (TOKENIZE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked and length": (TOKENIZE + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "unknown transfer encoding": (TOKENIZE + b"Transfer-Encoding: zip\r\n\r\n", 400),
    "almost chunked": (TOKENIZE + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked twice": (TOKENIZE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked and identity": (TOKENIZE + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "hidden chunked": (TOKENIZE + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunked in 1.0": (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED, 400),
    "unknown expectation": (TOKENIZE + b"Expect: wonders\r\nContent-Length: 2\r\n\r\n{}", 417),
    "huge length": (TOKENIZE + b"Content-Length: 99999999999999999999\r\n\r\n", 413),
}
JSON = b"Content-Type: application/json\r\n"
CHUNKED = TOKENIZE + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
BODIES = {
    "bad chunk size": (CHUNKED + b"xyz\r\n", 400),
    "signed chunk size": (CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n" + SMUGGLED, 400),
    "chunk lines that end in lf": (CHUNKED + b"2\n{}\n0\n\n" + SMUGGLED, 400),
    "chunk line that ends in lf": (CHUNKED + b"2\n{}\n0\n\n", 400),
    "last chunk that ends in lf": (CHUNKED + b"2\r\n{}\r\n0\n\n", 400),
    "chunk longer than its size": (CHUNKED + b"1\r\n{}\r\n0\r\n\r\n" + SMUGGLED, 400),
    "long chunk extension": (CHUNKED + b"2;x=" + b"a" * 100_000, 400),
    "many chunk extensions": (CHUNKED + (b"1;x=" + b"a" * 5_000 + b"\r\n \r\n") * 10, 400),
    "long trailers": (CHUNKED + b"2\r\n{}\r\n0\r\nX: " + b"a" * 100_000, 400),
    "bad trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX : a\r\n\r\n" + SMUGGLED, 400),
    "huge chunk": (CHUNKED + b"ffffffff\r\n", 413),
    "gzip body": (TOKENIZE + JSON + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", 415),
}


@pytest.mark.parametrize("name", [*HEADS, *BODIES])
def test_broken_framing(server, name):
    """One answer, and then the connection is closed whatever else was sent on it."""
    request, status = {**HEADS, **BODIES}[name]
    connection = Raw(server.port).send(request)
    connection.socket.settimeout(40)
    data = b""
    while piece := connection.socket.recv(65536):
        data += piece
    assert data.count(b"\r\nContent-Length: ") == 1
    head, _, body = data.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
    assert headers["connection"] == "close"
    check_error((int(head.split()[1]), headers, body), status)


def test_clients_that_close_their_own_side_are_answered(server, model):
    request = post(TEXT, json.dumps({**OK_TEXT, "model": model}))
    assert Raw(server.port).send(request).half_close().answer()[0] == 200


@pytest.mark.parametrize("size", [33 << 20, 64 << 20])
def test_body_over_the_limit(server, size):
    body = b'{"model": "' + b"x" * size + b'"}'
    check_error(Raw(server.port).send(post(CHAT, body)).answer(), 413, None, "request_too_large")


def test_body_over_the_limit_is_refused_before_it_is_sent(server):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: {64 << 20}\r\n\r\n"
    check_error(Raw(server.port).send(head).answer(), 413)


def test_chunked_body_over_the_limit(server):
    connection = Raw(server.port).send(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    for _ in range(40):
        connection.send(chunk)
    check_error(connection.answer(), 413)


def test_large_bodies_within_the_limit_many_times(server):
    for _ in range(10):
        body = b'{"model": "' + b"x" * (30 << 20) + b'"}'
        assert Raw(server.port).send(post(CHAT, body)).answer()[0] == 400


@pytest.mark.parametrize("sent", [b"", b"{", b'{"model": "x"'])
def test_truncated_body(server, sent):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n".encode()
    check_error(Raw(server.port).send(head + sent).half_close().answer(), 400)


def slow(server, request, pace=0.2):
    """Sends a byte now and then until an answer comes."""
    connection = Raw(server.port).send(request)
    done = threading.Event()

    def trickle():
        while not done.wait(pace):
            connection.send(b" ")
    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        return connection.answer()
    finally:
        done.set()
        thread.join()


def test_slow_requests_end_after_ten_seconds_and_hold_up_nobody(server, model):
    requests = [f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n",
                f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
                "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "]
    results = []
    threads = [threading.Thread(target=lambda request=request: results.append(slow(server, request))) for request in requests * 4]
    for thread in threads:
        thread.start()
    assert Raw(server.port).send(post(TEXT, json.dumps({**OK_TEXT, "model": model}))).answer()[0] == 200
    assert not results, "the quick one did not wait for the slow ones"
    for thread in threads:
        thread.join()
    assert len(results) == 12
    for answer in results:
        check_error(answer, 408, None, "request_timeout")


def test_silent_body_times_out(server):
    check_error(Raw(server.port).send(f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n").answer(), 408)


def test_pipelined_requests(server, model):
    one = post(TEXT, json.dumps({**OK_TEXT, "model": model}))
    connection = Raw(server.port).send(one + b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + post(TEXT, "{") +
                                       b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    data = b""
    while piece := connection.socket.recv(65536):
        data += piece
    assert [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]] == [200, 200, 400, 404]


def test_connections_that_come_and_go(server, model):
    for _ in range(200):
        Raw(server.port).socket.close()
        Raw(server.port).send("POST /v1/comp").socket.close()
        Raw(server.port).send(post(TEXT, json.dumps({**OK_TEXT, "model": model}))).socket.close()
    assert Raw(server.port).send(post(TEXT, json.dumps({**OK_TEXT, "model": model}))).answer()[0] == 200


def test_wrong_keys(family):
    from server_process import Server
    server = Server(family, "--api-key", "right")
    try:
        for header in ["", "Authorization: right", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: Bearer wrong",
                       "Authorization: Bearer right ", "Authorization: Bearer rightright", "Authorization: Basic cmlnaHQ=",
                       "Authorization: Bearer " + "x" * 5000, "X-Api-Key: wrong", "X-Api-Key: Bearer right",
                       "X-Api-Key: right\r\nAuthorization: Bearer wrong"]:
            request = f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n" if header else "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            answer = Raw(server.port).send(request).answer()
            if header.endswith("right "):
                continue  # HTTP drops blanks at the end of a header
            check_error(answer, 401, None, "invalid_api_key")
        for header in ["Authorization: Bearer right", "X-Api-Key: right"]:
            assert Raw(server.port).send(f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n").answer()[0] == 200
    finally:
        assert server.terminate() == 0

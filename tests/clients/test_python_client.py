"""The typed client of python/droidspeak against a running server."""

import sys
import threading

import httpx
import pytest

from server_process import ROOT, Server, adapters, build_folder

sys.path.insert(0, str(ROOT / "python"))

import droidspeak  # noqa: E402

MESSAGES = [{"role": "user", "content": "Tell me about caches and how they are shared by models."}]


@pytest.fixture(scope="module")
def ours(server):
    return droidspeak.Client(server.url, timeout=120)


def test_models_are_the_familys(ours, family, model):
    models = ours.models()
    assert [entry.id for entry in models if entry.parent is None] == [model]
    assert {entry.id for entry in models if entry.parent == model} == set(adapters(family))
    assert all(entry.max_model_len > 0 for entry in models)


def test_version_is_the_programs(ours):
    import subprocess
    text = subprocess.run([build_folder() / "droidspeak", "--version"], check=True, capture_output=True, text=True).stdout
    version = ours.version()
    lines = text.splitlines()
    assert lines[0] == f"droidspeak {version.version}" and lines[1] == f"commit: {version.commit}"
    assert lines[3] == "features: " + " ".join(version.features) and {"cpu", "tls", "unix-socket"} <= set(version.features)
    assert f"VERSION {version.version} " in (ROOT / "CMakeLists.txt").read_text()
    assert f"## {version.version}" in (ROOT / "CHANGELOG.md").read_text()
    assert lines[4].startswith("CPU kernels for this machine: portable")


def test_answers_are_those_of_openais_client(ours, client, model):
    answer = ours.chat(model, MESSAGES, max_tokens=8, temperature=0)
    theirs = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8, temperature=0)
    assert answer.text == theirs.choices[0].message.content and answer.finish_reasons == ["length"]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (theirs.usage.prompt_tokens, 8)
    assert answer.reuse.plan and answer.reuse.ttft_ms > 0
    raw = ours.complete(model, "a b c", max_tokens=4, temperature=0, n=2)
    assert len(raw.texts) == 2 and raw.texts[0] == raw.texts[1] == raw.text
    tokens = ours.tokenize("a b c")
    assert ours.detokenize(tokens) == "a b c"
    assert ours.complete(model, tokens, max_tokens=4, temperature=0, add_special_tokens=False).usage.prompt_tokens == len(tokens)


def test_a_variant_starts_from_the_bases_caches(ours, model, variant):
    messages = [{"role": "user", "content": "long words here " * 60}]
    ours.chat(model, messages, max_tokens=1, temperature=0, cache_salt="python-client")
    answer = ours.chat(variant, messages, max_tokens=2, temperature=0, cache_salt="python-client",
                       sharing={"sender": model, "plan": "reuse"})
    assert answer.reuse.sender == model and answer.reuse.plan == "reuse" and answer.usage.cached_tokens > 0


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_streams_make_the_same_text(ours, model, kind):
    content = MESSAGES if kind == "chat" else "a b c"
    whole = getattr(ours, kind)(model, content, max_tokens=9, temperature=0)
    pieces = list(getattr(ours, f"stream_{kind}")(model, content, max_tokens=9, temperature=0))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == whole.finish_reasons
    assert pieces[-1].usage == whole.usage.__class__(whole.usage.prompt_tokens, 9, pieces[-1].usage.cached_tokens)
    assert pieces[-1].reuse is not None and pieces[-1].text == ""


def test_leaving_a_stream_cancels_it(ours, server, model):
    stream = ours.stream_complete(model, "a b c", max_tokens=400, ignore_eos=True)
    next(stream)
    stream.close()
    for _ in range(200):
        if ours.state()["queue"] == {"running": 0, "waiting": 0}:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the request is still running")


def test_refusals_name_the_field(ours, model):
    with pytest.raises(droidspeak.ApiError) as refused:
        ours.chat(model, MESSAGES, temperature=9)
    assert (refused.value.status, refused.value.param) == (400, "temperature") and "temperature" in str(refused.value)
    with pytest.raises(droidspeak.ApiError) as unknown:
        list(ours.stream_chat("no-such-model", MESSAGES))
    assert (unknown.value.status, unknown.value.code) == (404, "model_not_found")
    with pytest.raises(TypeError, match="stream_chat"):
        ours.chat(model, MESSAGES, stream=True)


def test_adapters_come_and_go(ours, family):
    name, folder = next(iter(adapters(family).items()))
    ours.load_adapter("by-python", str(folder))
    assert "by-python" in {entry.id for entry in ours.models()}
    with pytest.raises(droidspeak.ApiError):
        ours.load_adapter("by-python", str(folder))
    ours.replace_adapter("by-python", str(folder))
    ours.unload_adapter("by-python")
    assert "by-python" not in {entry.id for entry in ours.models()}


def test_state_and_metrics_are_there(ours, server):
    assert ours.state()["healthy"] is True
    assert "vllm:num_requests_running" in ours.metrics()
    assert ours.is_healthy()
    assert httpx.get(server.url + "/version").json()["version"] == ours.version().version


def test_socket_and_key(family, tmp_path):
    path = tmp_path / "socket"
    server = Server(family, "--socket", path, "--api-key", "hush")
    try:
        with pytest.raises(droidspeak.ApiError) as refused:
            droidspeak.Client(f"unix:{path}").models()
        assert refused.value.status == 401
        assert httpx.get(server.url + "/version").status_code == 401
        client = droidspeak.Client(f"unix:{path}", api_key="hush")
        assert client.is_healthy() and client.models()
        assert client.complete("base", "a", max_tokens=3).usage.completion_tokens <= 3
    finally:
        assert server.terminate() == 0
    with pytest.raises(droidspeak.ConnectionFailed, match=str(path)):
        client.is_healthy()


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://a", "http://", "unix:", "unix://run/droidspeak/socket"])
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match="expected"):
        droidspeak.Client(url)


@pytest.mark.parametrize("url", ["http://a:b", "http://a:65536"])
def test_ports_that_are_none_are_refused(url):
    with pytest.raises(ValueError, match="[Pp]ort"):
        droidspeak.Client(url)


@pytest.mark.parametrize("url, place", [("http://[::1]", ("::1", 80)), ("https://[::1]", ("::1", 443)),
                                        ("http://[::1]:8080", ("::1", 8080)), ("http://a", ("a", 80))])
def test_addresses_are_read_whole(url, place):
    connection = droidspeak.client.Endpoint(url, None, 1.0, None)._connection()
    assert (connection.host, connection.port) == place

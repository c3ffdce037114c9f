"""The program itself: curl, metrics, keys, TLS, shutting down."""

import json
import os
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server_process import Server, adapters, build_folder


def curl(*arguments, data=None):
    result = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], input=data, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_curl_chat(server, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
    answer = json.loads(curl(server.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body))
    assert answer["object"] == "chat.completion"


def test_curl_stream(server, model):
    body = json.dumps({"model": model, "prompt": "Hi", "max_tokens": 3, "stream": True})
    lines = [line for line in curl("-N", server.url + "/v1/completions", "-H", "Content-Type: application/json", "-d", body).splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0][6:])["object"] == "text_completion"


def test_curl_large_body_with_expect(server, model, tmp_path):
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"model": model, "prompt": "x" * 3_000_000}))
    status = curl("-o", tmp_path / "answer", "-w", "%{http_code}", "-H", "Expect: 100-continue",
                  "-H", "Content-Type: application/json", "--data-binary", f"@{request}", server.url + "/v1/completions")
    assert status == "400"
    assert json.loads((tmp_path / "answer").read_text())["error"]["code"] == "context_length_exceeded"


def test_curl_http10(server):
    assert "ok" in curl("--http1.0", server.url + "/health")


def test_metrics_parse_and_count(server, client, model):
    def values():
        families = text_string_to_metric_families(httpx.get(server.url + "/metrics").text)
        return {family.name: family for family in families}
    names = {entry.id for entry in client.models.list().data}
    before = values()
    client.completions.create(model=model, prompt="abc", max_tokens=4, extra_body={"ignore_eos": True})
    after = values()

    def total(families, name):
        return sum(sample.value for sample in families[name].samples if not sample.name.endswith("_created"))
    assert total(after, "vllm:generation_tokens") == total(before, "vllm:generation_tokens") + 4
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:num_preemptions", "vllm:prompt_tokens",
                 "vllm:request_success", "vllm:time_to_first_token_seconds", "vllm:time_per_output_token_seconds",
                 "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds"):
        assert name in after, name
        labels = {sample.labels["model_name"] for sample in after[name].samples}
        assert labels in ({model}, names), name
    by_model = {sample.labels["model_name"]: sample.value for sample in after["vllm:generation_tokens"].samples
                if sample.name.endswith("_total")}
    assert set(by_model) == names and by_model[model] >= 4
    histogram = after["vllm:time_to_first_token_seconds"]
    buckets = [sample.value for sample in histogram.samples
               if sample.name.endswith("_bucket") and sample.labels["model_name"] == model]
    assert buckets == sorted(buckets) and buckets[-1] > 0
    assert "droidspeak_store_bytes" in after and "process_resident_memory_bytes" in after


def test_page_is_served(server):
    page = httpx.get(server.url + "/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert httpx.head(server.url + "/").text == ""


def test_state(server):
    state = httpx.get(server.url + "/v1/droidspeak/state").json()
    assert state["healthy"] and state["families"][0]["variants"]
    assert set(state) >= {"families", "caches", "queue"}


@pytest.mark.parametrize("path", ["/v1/droidspeak/plan_books", "/chart.js", "/"])
def test_what_stays_the_same_is_sent_once(server, path):
    first = httpx.get(server.url + path)
    tag = first.headers["etag"]
    again = httpx.get(server.url + path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert httpx.get(server.url + path, headers={"If-None-Match": '"other"'}).content == first.content


def test_keys(family):
    server = Server(family, "--api-key", "secret", "--protect-metrics", "--served-model-name", "renamed")
    try:
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.get(server.url + "/metrics").status_code == 401
        assert httpx.get(server.url + "/health").status_code == 200
        good = {"Authorization": "Bearer secret"}
        assert httpx.get(server.url + "/v1/models", headers=good).json()["data"][0]["id"] == "renamed"
        assert httpx.get(server.url + "/metrics", headers=good).status_code == 200
    finally:
        assert server.terminate() == 0


@pytest.mark.parametrize("flags", [("--adapter-root", "/there/is/none"), ("--max-body", "0")])
def test_options_that_cannot_be_are_refused_at_start(family, flags):
    command = [str(build_folder() / "droidspeak"), "serve", "--family", str(family), "--port", "0", *flags]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert flags[0] in refused.stderr and flags[1] in refused.stderr


def test_tls(family, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    server = Server(family, "--tls-cert", certificate, "--tls-key", key)
    try:
        assert server.url.startswith("https://")
        import ssl
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=context) as client:
            models = client.get(server.url + "/v1/models").json()["data"]
            body = {"model": models[0]["id"], "prompt": "x", "max_tokens": 50, "stream": True}
            with client.stream("POST", server.url + "/v1/completions", json=body) as response:
                assert list(response.iter_lines())[-2:][0] == "data: [DONE]"
            big = client.post(server.url + "/v1/completions", content=b"[" + b" " * 5_000_000 + b"]",
                              headers={"Content-Type": "application/json"})
            assert big.status_code == 400
    finally:
        assert server.terminate() == 0


def test_unix_socket(family, tmp_path):
    """Beside the port, for this user alone; a stale one is replaced, a live one refused, and none is left."""
    path = tmp_path / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    server = Server(family, "--socket", path)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.get("http://localhost/health").json() == {"status": "ok"}
            assert client.get("http://any-name/v1/models").status_code == 200
        assert httpx.get(server.url + "/health").status_code == 200
        command = [build_folder() / "droidspeak", "serve", "--family", family, "--port", "0", "--socket", path]
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 1 and str(path) in second.stderr
        assert path.exists()
    finally:
        assert server.terminate() == 0
    assert not path.exists()


def test_a_second_signal_ends_at_once(family, tmp_path):
    """A stream whose client reads nothing keeps the server draining."""
    path = tmp_path / "socket"
    server = Server(family, "--drain-s", "600", "--socket", path)
    body = json.dumps({"model": "base", "prompt": "x", "max_tokens": 500, "n": 128, "stream": True, "ignore_eos": True,
                       "logprobs": 2})
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert client.recv(12) == b"HTTP/1.1 200"
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 128 + signal.SIGINT
    assert not path.exists()


def test_wrong_flags_are_usage_errors(family):
    bad = subprocess.run([build_folder() / "droidspeak", "serve", "--port", "x"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.strip()
    missing = subprocess.run([build_folder() / "droidspeak", "serve", "--family", "/nothing.json"], capture_output=True, text=True)
    assert missing.returncode == 1 and "/nothing.json" in missing.stderr


def test_sigterm_drains(family):
    server = Server(family, "--drain-s", "120")
    try:
        model = httpx.get(server.url + "/v1/models").json()["data"][0]["id"]
        lines = []
        began = threading.Event()

        def read():
            body = {"model": model, "prompt": "x", "max_tokens": 1500, "n": 8, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=120) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    began.set()
        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(60)
        server.process.terminate()
        statuses = set()
        while reader.is_alive():
            try:
                statuses.add(httpx.post(server.url + "/v1/completions", json={}, timeout=10).status_code)
            except httpx.TransportError:
                pass  # the connection was made in the very moment in which the server went
            time.sleep(0.01)
        reader.join()
        assert "data: [DONE]" in lines
        assert 503 in statuses
        assert server.process.wait(60) == 0, "a second signal would cut it short"
    finally:
        server.terminate()


def test_sigterm_does_not_wait_for_ever(family):
    server = Server(family, "--drain-s", "1")
    model = httpx.get(server.url + "/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=120) as response:
        next(response.iter_lines())
        assert server.terminate() == 0


def test_adapters_come_and_go(server, client, family, variant):
    body = {"lora_name": "another", "lora_path": str(adapters(family)[variant])}
    loaded = httpx.post(server.url + "/v1/load_lora_adapter", json=body)
    assert loaded.status_code == 200 and "Success" in loaded.text
    try:
        same = [client.completions.create(model=name, prompt="Once", max_tokens=8, temperature=0).choices[0].text
                for name in ("another", variant)]
        assert same[0] == same[1]
        assert httpx.post(server.url + "/v1/load_lora_adapter", json=body).status_code == 400
        assert httpx.post(server.url + "/v1/load_lora_adapter", json={**body, "load_inplace": True}).status_code == 200
    finally:
        assert httpx.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": "another"}).status_code == 200
    assert httpx.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": "another"}).status_code == 404


def preflight(server, path, origin):
    return httpx.options(server.url + path, headers={
        "Origin": origin, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type"})


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_no_site_may_call_unless_told(server, path):
    answer = preflight(server, path, "http://example.org")
    assert answer.status_code == 204
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_sites_that_may_call(family):
    server = Server(family, "--cors-origin", "http://example.org", "--cors-origin", "https://other.org",
                    "--allowed-host", "llm.example.org")
    try:
        answer = preflight(server, "/tokenize", "https://other.org")
        assert answer.headers["access-control-allow-origin"] == "https://other.org"
        assert "authorization" in answer.headers["access-control-allow-headers"]
        for headers, status in [({"Origin": "http://example.org"}, 200), ({"Origin": "http://evil.org"}, 403), ({"Origin": "null"}, 403),
                                ({"Origin": server.url}, 200), ({"Host": "llm.example.org"}, 200), ({"Host": "evil.org"}, 421)]:
            assert httpx.post(server.url + "/tokenize", json={"prompt": "x"}, headers=headers).status_code == status, headers
    finally:
        assert server.terminate() == 0


def test_a_foreign_pages_form_unloads_nothing(server, variant):
    for headers in ({"Content-Type": "text/plain", "Origin": "http://evil.org"}, {"Content-Type": "text/plain"}, {}):
        answer = httpx.post(server.url + "/v1/unload_lora_adapter", content=json.dumps({"lora_name": variant}), headers=headers)
        assert answer.status_code in (403, 415)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(server.url + "/v1/models/" + variant).status_code == 200


def test_nobody_reads_the_log(family):
    """A full pipe behind stdout and stderr costs log lines, not answers."""
    reader, writer = os.pipe()
    server = Server(family, "--log-requests", log=f"/dev/fd/{writer}")
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for _ in range(1500):
            assert client.post("/tokenize", json={"prompt": "x" * 50}).status_code == 200
        assert client.post("/v1/completions", json={"model": "base", "prompt": "Hi", "max_tokens": 2}).status_code == 200
    assert server.terminate() == 0
    assert len(os.read(reader, 1 << 20)) >= 60_000, "the pipe was full"
    os.close(reader)
    os.close(writer)

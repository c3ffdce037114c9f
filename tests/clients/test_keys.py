"""Where keys come from, which are refused at start, and what the log says of them."""

import json
import os
import subprocess

import httpx
import pytest

from server_process import Server, build_folder

BAD_KEYS = ["", " ", "\t", "a b", "secret ", "key\u00e4"]


def start(family, *flags, **environment):
    """How `serve` ends when it cannot start."""
    command = [build_folder() / "droidspeak", "serve", "--family", family, "--port", "0", *flags]
    return subprocess.run([str(part) for part in command], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_everybody_could_guess_are_refused(family, key):
    for source, ended in [("--api-key", start(family, "--api-key", key)), ("--admin-key", start(family, "--admin-key", key)),
                          ("DROIDSPEAK_API_KEY", start(family, DROIDSPEAK_API_KEY=key)),
                          ("DROIDSPEAK_ADMIN_KEY", start(family, DROIDSPEAK_ADMIN_KEY=key))]:
        assert ended.returncode == 1, (source, ended.stdout)
        assert source in ended.stderr and "key" in ended.stderr
        assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("text,line", [("a:hush\nb\n", 2), ("# x\n\na:\n", 3), (":hush", 1), ("a:hush\nb:hush", 2), ("a:hush\na:other", 2)])
def test_key_files_are_refused_by_line(family, tmp_path, text, line):
    path = tmp_path / "keys"
    path.write_text(text)
    ended = start(family, "--api-key-file", path)
    assert ended.returncode == 1
    assert f"{path}, line {line}" in ended.stderr and "hush" not in ended.stderr


def test_the_same_key_twice_is_refused(family):
    ended = start(family, "--api-key", "hushhush", "--admin-key", "hushhush")
    assert ended.returncode == 1 and "--admin-key" in ended.stderr and "hushhush" not in ended.stderr


def test_a_missing_key_file_is_refused(family):
    ended = start(family, "--api-key-file", "/no/such/file")
    assert ended.returncode == 1 and "/no/such/file" in ended.stderr


@pytest.mark.parametrize("flag", ["--api-key-file", "--tls-cert", "--tls-key", "--socket", "--adapter-root"])
def test_empty_paths_are_refused(family, flag):
    """They would mean the same as none: no keys, no TLS."""
    ended = start(family, flag, "")
    assert ended.returncode == 2 and ended.stdout == ""
    assert flag in ended.stderr and "empty" in ended.stderr


def test_metrics_are_not_protected_without_a_key(family):
    ended = start(family, "--protect-metrics")
    assert ended.returncode == 1 and "--protect-metrics" in ended.stderr and "--admin-key" in ended.stderr


def test_all_sources_at_once_and_names_in_the_log(family, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text("anna: annas-key\n")
    monkeypatch.setenv("DROIDSPEAK_API_KEY", "key-of-environment")
    monkeypatch.setenv("DROIDSPEAK_ADMIN_KEY", "key-of-admin")
    log = tmp_path / "log"
    server = Server(family, "--api-key", "key-of-line", "--api-key-file", keys, "--log-requests", log=log)
    try:
        for key in ("annas-key", "key-of-environment", "key-of-admin", "key-of-line"):
            assert httpx.get(server.url + "/v1/models", headers={"Authorization": "Bearer " + key}).status_code == 200
        assert httpx.get(server.url + "/v1/models").status_code == 401
        assert httpx.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": "x"},
                          headers={"Authorization": "Bearer annas-key"}).status_code == 403
        assert httpx.post(server.url + "/v1/unload_lora_adapter", json={"lora_name": "x"},
                          headers={"Authorization": "Bearer key-of-admin"}).status_code == 404
    finally:
        assert server.terminate() == 0
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [line.get("key") for line in lines if line.get("status") == 200] == [
        "anna", "DROIDSPEAK_API_KEY", "DROIDSPEAK_ADMIN_KEY", "api-key-1"]
    assert not any(key in text for key in ("annas-key", "key-of-environment", "key-of-admin", "key-of-line"))

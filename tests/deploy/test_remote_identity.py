"""Several families, tenants, adapters of one name and secrets on one Redis: nobody takes what is not his. And a Redis that
comes late."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("clients", "soak"):
    sys.path.insert(0, str(ROOT / "tests" / folder))

from network_faults import Redis  # noqa: E402
from server_process import Server, build_folder  # noqa: E402

pytestmark = pytest.mark.skipif(not (shutil.which("redis-server") or shutil.which("valkey-server")), reason="no redis-server on this machine")

PROMPT = "Where one variant has read a context, the others start from its caches. " * 8
WAIT_SECONDS = 60
READERS = 8  # a server whose link is slow for a moment computes, and rightly so: then another one is asked


def wait_until(condition):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def questions_to(redis):
    """How often it was asked whether it has something: only who looks for caches does."""
    calls = re.search(r"cmdstat_exists:calls=(\d+)", redis.command("INFO", "commandstats"))
    return int(calls[1]) if calls else 0


def make_family(folder):
    made = subprocess.run([build_folder() / "bin" / "tiny_family", folder], check=True, capture_output=True, text=True)
    return pathlib.Path(made.stdout.strip())


def edit(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


class Node:
    """A server that shares through Redis, or one by itself (`redis` None)."""

    def __init__(self, family, redis, folder, secret="a", flags=()):
        self.log = folder / f"{secret}.log"
        if redis:
            path = folder / f"{secret}.secret"
            path.write_text(secret * 32)
            path.chmod(0o600)
            flags = [*flags, "--remote-cache", f"redis://127.0.0.1:{redis.port}", "--remote-secret-file", path]
        self.server = Server(family, *flags, log=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.terminate()

    def call(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as response:
            return json.load(response)

    def answer(self, model, tenant):
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1, "sharing": "off", "cache_salt": tenant}
        choice = self.call("/v1/completions", body)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def remote(self):
        return next(tier for tier in self.call("/v1/droidspeak/state")["caches"]["tiers"] if tier["name"] == "remote")

    def is_linked(self):
        return any(link["up"] for link in self.remote()["links"])


def other_base(family):
    edit(family.parent / "base" / "config.json", rope_theta=20000.0)


def other_adapter(family):
    """beta's weights under alpha's name."""
    adapters = family.parent / "adapters"
    for file in (adapters / "beta").iterdir():
        shutil.copy(file, adapters / "alpha" / file.name)


def same(family):
    pass


CASES = {  # name: (model, change of the reader's family, the reader's tenant, secret and flags, whether it may take the writer's caches)
    "the same": ("alpha", same, "one", "a", [], True),
    "another tenant": ("alpha", same, "two", "a", [], False),
    "another family": ("base", other_base, "one", "a", [], False),
    "another adapter of that name": ("alpha", other_adapter, "one", "a", [], False),
    "another secret": ("alpha", same, "one", "b", [], False),
    "another format": ("alpha", same, "one", "a", ["--remote-format", "int8"], False),
    "another precision": ("alpha", same, "one", "a", ["--precision", "exact"], False),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A Redis with what a server of the tiny family has read, for tenant "one"."""
    folder = tmp_path_factory.mktemp("written")
    redis = Redis(folder)
    try:
        with Node(make_family(folder / "family"), redis, folder, flags=["--remote-format", "raw"]) as writer:
            wait_until(writer.is_linked)
            for model in ("base", "alpha"):
                writer.answer(model, "one")
        yield redis
    finally:
        redis.kill()


@pytest.mark.parametrize("case", CASES)
def test_nobody_takes_what_is_not_his(written, tmp_path, case):
    model, change, tenant, secret, flags, is_shared = CASES[case]
    family = make_family(tmp_path / "family")
    change(family)
    flags = flags if "--remote-format" in flags else [*flags, "--remote-format", "raw"]
    alone_flags = [flag for flag in flags if flag in ("--precision", "exact")]
    with Node(family, None, tmp_path, flags=alone_flags) as alone:
        expected = alone.answer(model, tenant)
    for _ in range(READERS):
        with Node(family, written, tmp_path, secret, flags) as reader:
            wait_until(reader.is_linked)
            before = questions_to(written)
            text, scores = reader.answer(model, tenant)
            num_questions = questions_to(written) - before
            remote = reader.remote()
        assert text == expected[0]
        assert scores == pytest.approx(expected[1], abs=1e-4)
        assert num_questions > 0, "Redis was not asked, so that nothing is shown"
        if remote["bytes_read"] + remote["damaged"] > 0 or not (is_shared or secret != "a"):
            break
    assert (remote["bytes_read"] > 0) == is_shared
    assert (remote["damaged"] > 0) == (secret != "a"), "what was sealed with another secret counts"


def test_a_redis_that_comes_late_is_used_then(tmp_path):
    redis = Redis(tmp_path)
    redis.kill()
    with Node(make_family(tmp_path / "family"), redis, tmp_path) as node:
        first = node.answer("base", "one")
        time.sleep(1)
        warnings = [line for line in node.log.read_text().splitlines() if str(redis.port) in line and "warn" in line.lower()]
        assert len(warnings) == 1, warnings
        redis.start()
        wait_until(node.is_linked)
        assert node.answer("base", "two") == first
        wait_until(lambda: node.remote()["bytes_written"] > 0)
    redis.kill()

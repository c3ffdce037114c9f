"""Tenants with different salts never share, and nobody can tell by the clock what another tenant has asked."""

import math
import random
import statistics
import time

import httpx
import pytest

from server_process import Server

PAIRS = 20
CONTEXT_CHARACTERS = 2600


@pytest.fixture(scope="module")
def tenants_server(family):
    server = Server(family)
    yield server
    assert server.terminate() == 0


def make_context(generator):
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(CONTEXT_CHARACTERS)]
    return " ".join(words)[:CONTEXT_CHARACTERS]


def ask(client, model, context, salt):
    """(seconds to the answer's only token as the client sees them, cached tokens, what was done)"""
    body = {"model": model, "prompt": context, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    start = time.perf_counter()
    answer = client.post("/v1/completions", json=body)
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["droidspeak"]


def chance(ratios, generator, rounds=4000):
    """How often a mean as far from 1 comes from swapping the two sides of pairs at random."""
    sizes = [math.log(ratio) for ratio in ratios]
    seen = abs(sum(sizes))
    hits = sum(abs(sum(size * generator.choice((-1, 1)) for size in sizes)) >= seen for _ in range(rounds))
    return hits / rounds


def tells_apart(ratios, generator):
    """Whether times say which side of the pairs is which: by a fifth or more, and not by chance."""
    return not 0.8 < statistics.median(ratios) < 1.25 and chance(ratios, generator) < 0.001


@pytest.mark.parametrize("victim", ["another tenant", ""])
def test_another_tenants_context_takes_as_long_as_an_unknown_one(tenants_server, victim):
    generator = random.Random(7)
    foreign, own = [], []
    with httpx.Client(base_url=tenants_server.url, timeout=120) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        ask(client, model, make_context(generator), "warm up")
        for i in range(PAIRS):
            known, unknown = make_context(generator), make_context(generator)
            ask(client, model, known, victim)
            times = {}
            for context in generator.sample([known, unknown], 2):
                times[context], cached, done = ask(client, model, context, "curious")
                assert cached == 0 and done["sender"] is None and done["reused_tokens"] == 0
            foreign.append(times[known] / times[unknown])
            seconds, cached, _ = ask(client, model, unknown, "curious")
            assert cached > 0
            own.append(seconds / times[unknown])
    assert not tells_apart(foreign, generator), f"median ratio {statistics.median(foreign):.3f}"
    # The same eyes do see a cache where there is one.
    assert tells_apart(own, generator), f"median ratio {statistics.median(own):.3f}"
    assert statistics.median(own) < 0.7

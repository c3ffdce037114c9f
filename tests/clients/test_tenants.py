"""Tenants, by key or by salt, never share, and nobody can tell by the clock what another tenant has asked."""

import math
import random
import statistics
import time

import httpx
import pytest

from server_process import Server

MIN_PAIRS = 20
MAX_PAIRS = 120
LEAK = 0.85  # so much less time must be seen
CONTEXT_CHARACTERS = 2600
CURIOUS = {"key": "key-of-the-curious", "salt": "curious"}


@pytest.fixture(scope="module")
def tenants_server(family, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("# two customers\nvictim:key-of-the-victim\ncurious:key-of-the-curious\n")
    server = Server(family, "--api-key-file", keys, "--admin-key", "key-of-the-admin")
    yield server
    assert server.terminate() == 0


def make_context(generator):
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 9))) for _ in range(CONTEXT_CHARACTERS)]
    return " ".join(words)[:CONTEXT_CHARACTERS]


def ask(client, model, context, tenant):
    """(seconds to the answer's only token as the client sees them, cached tokens, what was done)"""
    body = {"model": model, "prompt": context, "max_tokens": 1, "temperature": 0}
    if tenant["salt"] is not None:
        body["cache_salt"] = tenant["salt"]
    start = time.perf_counter()
    answer = client.post("/v1/completions", json=body, headers={"Authorization": "Bearer " + tenant["key"]})
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["droidspeak"]


def chance(ratios, generator, rounds=4000):
    """How often pairs as one-sided come from swapping their sides at random: Wilcoxon's signed ranks, which a few
    wild times do not blur."""
    sizes = sorted((math.log(ratio) for ratio in ratios), key=abs)
    ranks = range(1, len(sizes) + 1)
    seen = abs(sum(math.copysign(rank, size) for rank, size in zip(ranks, sizes)))
    hits = sum(abs(sum(rank * generator.choice((-1, 1)) for rank in ranks)) >= seen for _ in range(rounds))
    return hits / rounds


def tells_apart(ratios, generator):
    """Whether times say which side of the pairs is which, beyond chance."""
    return chance(ratios, generator) < 0.001


def sees_leak(ratios, generator):
    """Whether these pairs, had one side leaked, would have told."""
    centre = statistics.median(ratios)
    return tells_apart([ratio / centre * LEAK for ratio in ratios], generator)


def measure(server, victim, generator):
    """Times of contexts that the victim has asked, and of own ones asked again, each over that of an unknown one; the
    answers never tell of another's."""
    foreign, own = [], []
    with httpx.Client(base_url=server.url, timeout=120) as client:
        models = client.get("/v1/models", headers={"Authorization": "Bearer " + CURIOUS["key"]})
        model = models.json()["data"][0]["id"]
        for _ in range(3):
            ask(client, model, make_context(generator), {**CURIOUS, "salt": "warm up"})
        while len(foreign) < MAX_PAIRS and (len(foreign) < MIN_PAIRS or not sees_leak(foreign, generator)):
            known, unknown = make_context(generator), make_context(generator)
            ask(client, model, known, victim)
            times = {}
            for context in generator.sample([known, unknown], 2):
                times[context], cached, done = ask(client, model, context, CURIOUS)
                assert cached == 0 and done["sender"] is None and done["reused_tokens"] == 0
            foreign.append(times[known] / times[unknown])
            seconds, cached, _ = ask(client, model, unknown, CURIOUS)
            assert cached > 0
            own.append(seconds / times[unknown])
    return foreign, own


@pytest.mark.parametrize("victim", [
    {"key": "key-of-the-victim", "salt": "curious"}, {"key": "key-of-the-victim", "salt": None},
    {"key": "key-of-the-curious", "salt": "another"}, {"key": "key-of-the-curious", "salt": None}])
def test_another_tenants_context_takes_as_long_as_an_unknown_one(tenants_server, victim):
    generator = random.Random(str(victim))  # contexts of its own
    for _ in range(2):
        foreign, own = measure(tenants_server, victim, generator)
        if sees_leak(foreign, generator):
            break
    else:
        return  # on a machine this busy times tell nobody anything; that nothing was reused has been checked
    assert not tells_apart(foreign, generator), f"median ratio {statistics.median(foreign):.3f}"
    # The same eyes do see a cache where there is one.
    assert tells_apart(own, generator), f"median ratio {statistics.median(own):.3f}"


def test_the_state_counts_other_tenants_for_the_admin_only(tenants_server):
    def state(key):
        return httpx.get(tenants_server.url + "/v1/droidspeak/state", headers={"Authorization": "Bearer " + key}).json()
    assert state("key-of-the-curious")["caches"] is None
    assert state("key-of-the-admin")["caches"]["tiers"][0]["capacity_bytes"] > 0


def test_keys_may_share_when_told(family):
    server = Server(family, "--api-key", "a", "--api-key", "b", "--share-between-keys")
    try:
        context = make_context(random.Random(1))
        with httpx.Client(base_url=server.url, timeout=120) as client:
            model = client.get("/v1/models", headers={"Authorization": "Bearer a"}).json()["data"][0]["id"]
            assert ask(client, model, context, {"key": "a", "salt": None})[1] == 0
            assert ask(client, model, context, {"key": "b", "salt": None})[1] > 0
            assert ask(client, model, context, {"key": "b", "salt": "apart"})[1] == 0
    finally:
        assert server.terminate() == 0

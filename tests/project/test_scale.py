"""The simulator of bench/scale."""

import dataclasses
import json
import pathlib
import random
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "scale"))

import against_nodes  # noqa: E402
import costs as costs_module  # noqa: E402
from cluster import BASE, Cluster  # noqa: E402
from costs import FRAME_SHARE, Costs, Curve, Way, fit  # noqa: E402
from parts import Busy, Memory, Options, Workflow  # noqa: E402
from scenario import Scenario, simulate  # noqa: E402
from workload import Zipf, make_workflows  # noqa: E402

PLAN = "0,16,24"
TOKENS = 4096


def make_costs(**changes):
    """Computing takes 1 ms a token, a plan a quarter of it; 1000 bytes a token, of which a plan reads 800."""
    way = Way({"reuse": 1000.0, PLAN: 800.0}, 1e12, 0.0)
    values = dict(name="made up", full=Curve(0, 1e-3), reading=Curve(0, 1e-3), plans={PLAN: Curve(0, 0.25e-3), "reuse": Curve(0, 1e-5)}, own=Curve(0, 1e-5),
                  ways={"redis int8": way, "peer memory": way}, memory_bytes_per_token=1000.0, mixed_share=0.25, token_s=0.0, cores=2, look_up_s=1e-9, record_s=1e-9,
                  values_per_block=9, adapter_s=0.5)
    return Costs(**{**values, **changes})


def make_cluster(nodes=2, sources=(("redis", "int8"),), costs=None, **changes):
    return Cluster(Options(nodes=nodes, sources=sources, plan=PLAN, **{"routing": "turns", "round_trip_s": 0.0, **changes}), costs or make_costs())


def answer_elsewhere(cluster):
    """One answer on node 1 after node 0 has read: (where it was found, TTFT)."""
    cluster.run([(0.0, Workflow(7, TOKENS, [1]))])
    [(found, ttft, _)] = cluster.answers
    return found, ttft


# costs

def test_a_fit_finds_the_curve_that_made_the_points():
    curve = Curve(0.02, 1e-3, 2e-8)
    found = fit([(tokens, curve(tokens)) for tokens in (512, 1024, 2048, 4096)])
    for tokens in (700, 4096, 6000):
        assert found(tokens) == pytest.approx(curve(tokens), rel=1e-6)


def test_one_length_makes_a_proportion():
    assert fit([(1000, 2.0)])(500) == pytest.approx(1.0)


def test_the_costs_of_h200_can_be_read():
    found = costs_module.load(ROOT / "bench" / "scale" / "h200.json")
    assert found.full(8192) == pytest.approx(0.2043, rel=0.01) and found.full(32768) == pytest.approx(1.1658, rel=0.01)
    assert found.plans["0,12,20"](8192) == pytest.approx(0.0561, rel=0.01)


def test_a_run_without_costs_is_refused_by_name():
    with pytest.raises(ValueError, match="no costs"):
        costs_module.from_nodes({"samples": [1], "costs": [], "directory": {"look_up_s": 1}})


# parts

def test_busy_things_do_one_after_another():
    link = Busy(rate=100.0)
    assert link.reserve(1.0, 200) == 3.0
    assert link.estimate(0.0, 100) == 4.0
    assert link.reserve(10.0, 100) == 11.0 and link.used == 300


def test_memory_forgets_what_was_used_longest_ago():
    gone = []
    memory = Memory(10, gone.append)
    memory.put("a", 4)
    memory.put("b", 4)
    memory.touch("a")
    memory.put("c", 4)
    assert gone == ["b"] and "a" in memory and memory.bytes == 8
    memory.put("huge", 11)
    assert "huge" not in memory and memory.bytes == 8


def test_zipf_draws_by_weight():
    zipf, source = Zipf(3, 1.0), random.Random(5)
    drawn = [zipf.draw(source) for _ in range(20000)]
    assert drawn.count(0) / drawn.count(1) == pytest.approx(2, rel=0.1)
    assert set(drawn) == {0, 1, 2}


# requests

def test_what_the_base_has_read_on_the_same_node_is_answered_with_a_plan():
    found, ttft = answer_elsewhere(make_cluster(nodes=1))
    assert found == "base host" and ttft == pytest.approx(0.25e-3 * TOKENS)


def test_without_sources_another_node_computes_in_full():
    found, ttft = answer_elsewhere(make_cluster(sources=()))
    assert found == "full" and ttft == pytest.approx(1e-3 * TOKENS)


@pytest.mark.parametrize("source,form", [("redis", "int8"), ("peer", "memory")])
def test_a_fast_link_hides_behind_computing(source, form):
    found, ttft = answer_elsewhere(make_cluster(sources=((source, form),), link_bytes_per_second=1e12))
    assert found == f"base {source}" and ttft == pytest.approx(0.25e-3 * TOKENS, rel=1e-3)


def prepared(link_bytes_per_second, **changes):
    """Redis has what the base has read, and nothing is on its way."""
    cluster = make_cluster(link_bytes_per_second=link_bytes_per_second, **changes)
    cluster.store.put((7, BASE), TOKENS * 1000.0)
    return cluster


def ask_once(cluster):
    cluster.run([(0.0, Workflow(7, TOKENS, [1], position=0))])
    [(found, ttft, _)] = cluster.answers
    return found, ttft


def test_a_slower_link_decides():
    found, ttft = ask_once(prepared(2e6))
    assert found == "base redis" and ttft == pytest.approx(800 * TOKENS / (2e6 * FRAME_SHARE), rel=0.01)


def test_a_link_that_is_slower_than_computing_is_not_used():
    found, ttft = ask_once(prepared(1e4, round_trip_s=0.001))
    assert found == "full" and ttft == pytest.approx(1e-3 * TOKENS + 0.001, rel=1e-3)


def test_what_is_queued_on_a_link_counts():
    cluster = prepared(2e6)
    cluster.store_up.reserve(0.0, 2e6 * 100)
    assert ask_once(cluster)[0] == "full"


def test_loads_on_shared_cores_take_from_computing():
    way = Way({"reuse": 1000.0, PLAN: 800.0}, 1e12, 1e-7, sender_busy_per_byte=1e-7)
    costs = make_costs(ways={"redis int8": way})
    alone, shared = [ask_once(prepared(1e12, costs=costs, shared_cores=shared))[1] for shared in (False, True)]
    assert alone == pytest.approx(0.25e-3 * TOKENS + 800 * TOKENS * 1e-7 / 2, rel=1e-3)
    assert shared - alone == pytest.approx(800 * TOKENS * 1e-7 / 2, rel=1e-2)


def test_a_directory_that_is_late_is_a_miss():
    found, ttft = ask_once(prepared(1e12, costs=make_costs(look_up_s=0.01)))
    assert found == "full" and ttft == pytest.approx(0.1 + 1e-3 * TOKENS)


def test_redis_thread_limits_what_it_hands_out():
    way = Way({"reuse": 1000.0, PLAN: 800.0}, 1e12, 0.0, store_busy_per_byte=1e-6)
    found, ttft = ask_once(prepared(1e12, costs=make_costs(ways={"redis int8": way})))
    assert found == "base redis" and ttft == pytest.approx(800 * TOKENS * 1e-6, rel=1e-3)


def test_look_ups_wait_for_a_turn_of_those_who_write_and_no_longer():
    way = Way({"reuse": 1000.0, PLAN: 800.0}, 1e12, 0.0, store_busy_per_byte=1e-6)
    cluster = prepared(1e12, costs=make_costs(ways={"redis int8": way}))
    cluster.values.reserve(0.0, 1000.0)
    cluster.num_writing = 1
    found, ttft = ask_once(cluster)
    assert found == "full" and ttft == pytest.approx(65536 * 1e-6 + 1e-3 * TOKENS, rel=1e-3)


def test_the_same_variant_finds_its_own_cache():
    cluster = make_cluster(nodes=1)
    cluster.run([(0.0, Workflow(7, TOKENS, [1, 1]))])
    assert [found for found, _, _ in cluster.answers] == ["base host", "own host"]


def test_what_a_plan_has_left_is_of_no_use_without_the_bases():
    cluster = make_cluster(nodes=1, sources=())
    cluster.run([(0.0, Workflow(7, TOKENS, [1]))])
    node = cluster.nodes[0]
    node.memory.bytes -= node.memory.entries.pop((7, BASE))
    cluster.run([(100.0, Workflow(7, TOKENS, [1], position=0))])
    assert [found for found, _, _ in cluster.answers] == ["base host", "full"]


def test_an_adapter_that_is_not_resident_is_loaded_first():
    cluster = make_cluster(nodes=1, adapters=2)
    cluster.run([(0.0, Workflow(7, TOKENS, [1, 1, 2, 3, 1]))])
    assert cluster.counts["adapter loads"] == 4
    assert cluster.answers[0][1] == pytest.approx(0.5 + 0.25e-3 * TOKENS)


def test_a_writer_that_is_far_behind_drops():
    cluster = make_cluster(nodes=1, link_bytes_per_second=10.0, memory_bytes=TOKENS * 1000.0 * 2.5)
    cluster.run([(0.0, Workflow(context, TOKENS, [])) for context in range(4)])
    assert cluster.counts["dropped writes"] == 3


def test_records_end_with_what_they_tell_of():
    cluster = make_cluster(nodes=1, sources=(("peer", "memory"),), memory_bytes=TOKENS * 1000.0 * 1.5)
    cluster.run([(0.0, Workflow(context, TOKENS, [])) for context in range(3)])
    assert cluster.records == TOKENS // 64 and list(cluster.holders) == [(2, BASE)]
    assert cluster.nodes[0].memory.evictions == 2


def test_a_run_with_records_ends_wherever_its_workflows_begin():
    cluster = make_cluster(sources=(("peer", "memory"),), link_bytes_per_second=1e12)
    cluster.place(cluster.nodes[1], (7, BASE), TOKENS * 1000.0)
    assert ask_once(cluster)[0] == "base peer" and cluster.arriving == 0


def test_no_node_runs_more_than_its_bound():
    cluster = make_cluster(nodes=8, sources=(), routing="contexts")
    seen = []
    step = cluster.step

    def watched(workflow):
        step(workflow)
        seen.append(max(node.running for node in cluster.nodes) - 2 * (cluster.total_running + 1) / 8)
    cluster.step = watched
    cluster.run([(0.001 * i, Workflow(3, TOKENS, [1])) for i in range(64)])
    assert max(seen) <= 1


# whole runs

SMALL = Scenario(nodes=5, variants=20, contexts_per_node=4, seconds=300.0, least_tokens=500, most_tokens=2000)


def test_the_same_seed_gives_the_same_result():
    first, again = simulate(SMALL, make_costs()), simulate(SMALL, make_costs())
    other = simulate(dataclasses.replace(SMALL, seed=2), make_costs())
    assert first == again and first != other


def test_every_answer_is_given_and_nothing_runs_on():
    cluster = make_cluster(nodes=5, routing="contexts")
    options = dataclasses.replace(SMALL, workflows_per_second=0.5)
    workflows = make_workflows(options)
    cluster.run(workflows)
    assert len(cluster.answers) == 5 * len(workflows) and cluster.readings.total() == len(workflows)
    assert cluster.total_running == 0 and all(node.running == 0 and node.waiting_bytes == 0 for node in cluster.nodes)


def test_sharing_between_nodes_helps_where_requests_take_turns():
    turns = dataclasses.replace(SMALL, routing="turns")
    apart, together = simulate(dataclasses.replace(turns, sources=()), make_costs()), simulate(turns, make_costs())
    assert together["hit_rate"] > apart["hit_rate"] and together["ttft_s"]["p50"] < apart["ttft_s"]["p50"]


def test_routing_by_context_moves_less():
    rows = [simulate(dataclasses.replace(SMALL, routing=routing), make_costs()) for routing in ("contexts", "turns")]
    assert rows[0]["gigabytes"]["from redis"] < rows[1]["gigabytes"]["from redis"]


# beside what was measured

def make_document(distort=1.0):
    """What bench/nodes would have measured on a machine that follows the simulator's laws."""
    samples, bandwidth = [], 5e8

    def sample(source, form, mbit, plan, ttft_ms, full_ms, size):
        done = {"sender": "base", "plan": plan, "tier": "host"}
        tiers = {"remote": {"bytes_read": size}} if source == "redis" else {}
        samples.append({"source": source, "format": form, "mbit": mbit, "round_trip_ms": 0, "plan": plan, "ttft_ms": ttft_ms, "full_ms": full_ms, "done": done, "tiers": tiers,
                        "cpu_s": {"node1": 0.0, "store": 0.0, "relay": 0.0, "node2": 0.0}})
    sample("host", "memory", None, "reuse", 50.0, 4000.0, 0)
    sample("redis", "int8", None, "reuse", 50.0 + TOKENS * 1000 / bandwidth * 1000, 0, TOKENS * 1000)
    sample("redis", "int8", 1000, PLAN, 1000.0, 4000.0, TOKENS * 800)
    cost_rows = [{"tokens": tokens, "full_ms": tokens / 1.024, "reading_ms": tokens / 1.024, "own_ms": 40 + tokens / 400, "token_ms": 4.0, "adapter_ms": 100.0,
                  "plans_ms": {PLAN: tokens / 4.096, "reuse": 40 + tokens / 400}} for tokens in (512, 1024, 2048, 4096)]
    reading = [{"source": "redis", "format": "int8", "mbit": 1000, "round_trip_ms": 0, "plan": PLAN, "over_full": {"median": 0.25 * distort}},
               {"source": "host", "format": "memory", "mbit": None, "round_trip_ms": 0, "plan": PLAN, "over_full": {"median": 0.25}}]
    return {"tokens": TOKENS, "samples": samples, "costs": cost_rows, "reading": reading, "plans": [PLAN], "threads": 2, "num_layers": 30, "recomputed_share": 8 / 30,
            "directory": {"look_up_s": 1e-6, "record_s": 1e-6}, "trace": []}


def test_a_machine_that_follows_the_laws_is_met(capsys):
    assert against_nodes.check(json.loads(json.dumps(make_document())))
    assert "2 of 2 within 10 %" in capsys.readouterr().out


def test_a_machine_that_does_not_is_told_of(capsys):
    assert not against_nodes.check(make_document(distort=1.3))
    assert "1 of 2 within 10 %" in capsys.readouterr().out


# the command

def run_command(*arguments):
    return subprocess.run([sys.executable, ROOT / "bench" / "scale", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("arguments,said", [(["--check", "/nowhere/nodes.json"], "No such file"), (["--nodes", "0"], "at least 1"), (["--nodes", "2", "--forms", "redis:zip"], "no costs of redis zip"),
                                            (["--nodes", "2", "--plan", "1,2,3"], "no costs of plan 1,2,3"), (["--nodes", "2", "--load", "0"], "--load 0.0: expected more than 0")])
def test_what_cannot_be_simulated_is_refused_by_name(arguments, said):
    done = run_command(*arguments)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    done = run_command("--costs", tmp_path / "other.json", "--nodes", "2")
    assert done.returncode != 0 and "neither costs nor what bench/nodes writes" in done.stderr and "Traceback" not in done.stderr


def test_a_table_has_a_row_for_each_cluster():
    done = run_command("--nodes", "2,3", "--variants", "5", "--seconds", "60")
    assert done.returncode == 0 and done.stdout.count("\n| 2 nodes, 5 variants") == 1 and done.stdout.count("\n| 3 nodes, 5 variants") == 1

"""The parts of bench/nodes that need neither root nor a model."""

import argparse
import importlib.util
import json
import pathlib
import socket
import sys
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "nodes"))

import agents_trace  # noqa: E402
import faults  # noqa: E402
import machines  # noqa: E402
import network  # noqa: E402
import report  # noqa: E402
from packet_relay import DelayLine  # noqa: E402
from tcp_relay import Pace, TcpRelay  # noqa: E402


def load_main():
    spec = importlib.util.spec_from_file_location("bench_nodes_main", ROOT / "bench" / "nodes" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# options

def test_rates_are_read():
    main = load_main()
    assert main.rates("10mbit,2.5gbit,25gbit") == [10, 2500, 25000]


@pytest.mark.parametrize("text", ["", "10", "10Mbit", "0mbit", "-1gbit", "1gbit,"])
def test_what_is_no_rate_is_refused_by_name(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no rate"):
        load_main().rates(text)


@pytest.mark.parametrize("arguments,said", [(["--tokens", "100"], "--tokens 100: expected 256 or more"), (["--tokens", "300"], "multiple of 64"),
                                            (["--formats", "zip"], "'zip' is none of raw, int8, coded"), (["--servers", "0"], "from 1 to 99"), (["--repeats", "0"], "expected 1 or more")])
def test_wrong_options_are_refused(capsys, arguments, said):
    with pytest.raises(SystemExit):
        load_main().parse_arguments(arguments)
    assert said in capsys.readouterr().err


def test_a_burst_is_four_milliseconds_and_never_less_than_a_few_packets():
    assert network.tbf_arguments(1000)[4] == "500000"
    assert network.tbf_arguments(10)[4] == str(network.LEAST_BURST_BYTES)


# relays

def test_a_pace_is_shared_by_all_who_send():
    now = [100.0]
    pace = Pace(1000.0, clock=lambda: now[0])
    assert pace.reserve(500) == 100.5
    assert pace.reserve(500) == 101.0
    now[0] = 200.0
    assert pace.reserve(1000) == 201.0
    pace.bytes_per_second = None
    assert pace.reserve(10 ** 9) == 200.0


@pytest.fixture
def echo():
    """A server that sends back what it gets, behind a relay."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=lambda: send_back(client), daemon=True).start()

    def send_back(client):
        try:
            while piece := client.recv(1 << 16):
                client.sendall(piece)
        except OSError:
            pass
        client.close()
    threading.Thread(target=serve, daemon=True).start()
    relay = TcpRelay(listener.getsockname()[1])
    yield relay
    relay.close()
    listener.close()


def receive(connection, count):
    parts = b""
    while len(parts) < count:
        piece = connection.recv(count - len(parts))
        assert piece, "the connection ended"
        parts += piece
    return parts


def test_bytes_pass_the_relay_unchanged_and_not_before_their_time(echo):
    echo.set_rate(80)  # 10 MB/s
    echo.set_round_trip(20)
    sent = bytes(range(256)) * 2048  # 0.5 MiB
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        begin = time.monotonic()
        threading.Thread(target=connection.sendall, args=(sent,)).start()
        assert receive(connection, len(sent)) == sent
        assert time.monotonic() - begin >= 0.052  # one way at the rate, and the delay


def test_the_delay_is_each_messages_own(echo):
    """Fifty messages, each on its own, on a link of 0.2 s each way: a message does not wait for the delay of those before it."""
    echo.set_round_trip(400)
    sent = [bytes([number]) * 10 for number in range(50)]
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        connection.settimeout(60)
        begin = time.monotonic()
        for message in sent:
            connection.sendall(message)
            time.sleep(0.02)
        assert receive(connection, 500) == b"".join(sent)
        assert 0.4 <= time.monotonic() - begin < 15  # some 1.4 s; behind each other's 20 s


def test_a_cut_ends_what_is_open_and_not_what_comes_later(echo):
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        connection.sendall(b"abc")
        assert receive(connection, 3) == b"abc"
        echo.cut()
        assert connection.recv(1) == b""
    with socket.create_connection(("127.0.0.1", echo.port)) as connection:
        connection.sendall(b"again")
        assert receive(connection, 5) == b"again"


def test_packets_leave_in_order_and_not_before_their_time():
    line = DelayLine(0.01)
    begin = time.monotonic()
    for packet in (b"a", b"b", b"c"):
        line.put(packet)
    assert [line.take() for _ in range(3)] == [b"a", b"b", b"c"]
    assert time.monotonic() - begin >= 0.01


def test_a_share_of_the_packets_is_lost_once_it_is_told_to():
    line = DelayLine(0.0, share=0.25, seed=3)
    for i in range(100):
        line.put(i)
    assert len(line.waiting) == 100
    line.is_losing = True
    for i in range(4000):
        line.put(i)
    assert len(line.waiting) == pytest.approx(3100, rel=0.05)


# the front

DEPLOYED = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()


def test_the_front_is_the_deployed_one_with_other_servers():
    made = machines.front_configuration(DEPLOYED, ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"], "contexts")
    assert made.count("    server server-") == 4 and "server server-4 10.0.0.4:80" in made
    without = [line for line in DEPLOYED.splitlines() if not line.strip().startswith("server server-")]
    assert [line for line in made.splitlines() if not line.strip().startswith("server server-")] == without


def test_by_turns_nothing_is_hashed():
    made = machines.front_configuration(DEPLOYED, ["10.0.0.1:80"], "turns")
    assert "balance roundrobin" in made and "\n    balance hdr" not in made and "\n    hash-" not in made


def test_hits_are_read_from_metrics():
    metrics = '# TYPE droidspeak_cache_hits_total counter\ndroidspeak_cache_hits_total{tier="host"} 12\ndroidspeak_cache_hits_total{tier="remote"} 3\nother{tier="peer"} 9\n'
    assert agents_trace.read_hits(metrics) == {"host": 12, "remote": 3}


# what must hold

def sample(source, mbit, ttft_ms, full_ms=4000.0, plan="0,16,24", sender="base", tier=None):
    tier = tier or ("peer" if source == "peer" else "remote")
    return {"source": source, "format": "int8" if source == "redis" else "memory", "mbit": mbit, "round_trip_ms": 0 if mbit is None else 1, "plan": plan, "ttft_ms": ttft_ms,
            "full_ms": full_ms, "done": {"sender": sender, "plan": plan, "tier": tier if sender else None}, "tiers": {"remote": {"bytes_read": 4e6}}}


def judge(samples):
    return {text: holds for text, holds, _ in report.check(report.summarize(samples), "0,16,24")}


def test_what_holds_is_told_from_what_fails():
    good = judge([sample("host", None, 1000.0), sample("redis", 1000, 1300.0), sample("redis", 10000, 1080.0), sample("peer", 1000, 1600.0), sample("peer", 10000, 1200.0),
                  sample("redis", 10, 4100.0, sender=None)])
    assert list(good.values()) == [True, True, False, False, True]
    bad = judge([sample("host", None, 1000.0), sample("redis", 10, 4300.0, sender=None)])
    assert list(bad.values()) == [None, None, None, None, False]


def test_what_redis_gave_is_no_proof_of_a_peer():
    found = judge([sample("host", None, 1000.0), sample("peer", 1000, 1000.0, tier="remote"), sample("peer", 10000, 1000.0, tier="remote")])
    assert list(found.values()) == [None, None, None, None, True]


def test_ratios_are_of_each_samples_own_full_prefill():
    [row] = report.summarize([sample("redis", 1000, 1000.0, 3000.0), sample("redis", 1000, 3000.0, 9000.0), sample("redis", 1000, 1000.0, 5000.0)])
    assert row["n"] == 3 and row["speedup"] == {"median": 3.0, "least": 3.0, "most": 5.0} and row["best"] == 3.0


def test_results_say_how_often_each_case_was_measured():
    one, two = report.summarize([sample("redis", 1000, 1000.0)]), report.summarize([sample("peer", 1000, 1000.0)] * 2)
    assert [report.show_number(rows) for rows in ([], one, one + two)] == ["", "N = 1 samples each, ", "N = 1 to 2 samples each, "]


def test_loads_alone_are_no_case():
    assert report.summarize([sample("redis", None, 100.0, full_ms=0.0, plan="reuse")]) == []


def test_the_tables_name_what_fails():
    rows = report.summarize([sample("redis", 10, 4300.0, sender=None)])
    assert any("**fails**" in line for line in report.check_table(report.check(rows, "0,16,24")))
    assert "full prefill" in report.reading_table(rows)[-1] and "10 Mbit/s" in report.reading_table(rows)[-1]


def fault(**changed):
    return {"source": "redis", "format": "raw", "fault": "link cut", "full_ms": 1000.0, "ttft_ms": 1100.0, "beyond_ms": 100.0, "done": "full prefill", "is_right": True, "goes_on": True,
            "in_time": True, **changed}


@pytest.mark.parametrize("changed,holds", [({}, True), ({"beyond_ms": 501.0}, False), ({"is_right": False}, False), ({"goes_on": False}, False), ({"in_time": False}, None)])
def test_every_fault_is_judged(changed, holds):
    assert [found for _, found, _ in report.check_faults([fault(**changed)])] == [holds]
    assert ("too late" in report.fault_table([fault(**changed)])[-1]) == (holds is None)


@pytest.mark.parametrize("tier,at_end,in_time", [("remote", 100, False), ("remote", 101, True), (None, 100, True), ("peer", 100, True)])
def test_a_fault_after_the_last_byte_of_a_load_is_too_late(tier, at_end, in_time):
    assert faults.came_in_time({"tier": tier}, "remote", 100, at_end) == in_time


def test_a_check_fails_when_a_fault_does(tmp_path, monkeypatch, capsys):
    main = load_main()
    for row, status in ((fault(), 0), (fault(is_right=False), 1)):
        path = tmp_path / "nodes.json"
        path.write_text(json.dumps({"samples": [], "plans": ["0,16,24"], "trace": [], "faults": [row]}))
        monkeypatch.setattr(sys, "argv", ["bench/nodes", "--check", str(path)])
        assert main.main() == status
        assert "link cut" in capsys.readouterr().out


def make_document(load):
    rows = report.summarize([sample("redis", 10, 4300.0, sender=None)])
    return {"command": "python3 bench/nodes", "tokens": 1024, "machine": {"cores": 2, "cpu": "a CPU", "load_before": load, "load_after": 0.5}, "date": "2026-01-01", "network": "",
            "sender": "base", "receiver": "qa", "plans": ["0,16,24"], "reading": rows, "checks": report.check(rows, "0,16,24"), "trace": []}


def test_results_say_when_other_work_ran():
    assert "beside other work" in report.markdown(make_document(9.0))
    assert "beside other work" not in report.markdown(make_document(1.9))


def test_results_of_another_length_decide_nothing():
    document = make_document(0.0)
    assert "decides nothing" in report.markdown(document)
    assert "decides nothing" not in report.markdown({**document, "tokens": 4096})

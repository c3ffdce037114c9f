"""What goes wrong while node 2 loads what node 1 has read: the link cut, packets lost, the sender stopped, the sender killed.
Every answer must be full prefill's or the plan's, at most 0.5 s beyond full prefill, and the next one must come."""

import contextlib
import secrets
import signal
import sys
import threading
import time

from machines import Server
from reading import Measurement, configurations
from report import FAULT_ANSWER_TOKENS, show_done

FAULT_MBIT = 1000
LOOK_S = 0.005
LOST_SHARE = 0.01
UNDISTURBED = "undisturbed"


@contextlib.contextmanager
def link_cut(measurement):
    measurement.network.stop_relay("node2")
    yield
    measurement.network.set_delay("node2", measurement.args.round_trip_ms)


@contextlib.contextmanager
def packets_lost(measurement):
    measurement.network.toggle_loss("node2")
    yield
    measurement.network.toggle_loss("node2")


@contextlib.contextmanager
def sender_stopped(measurement):
    sender = measurement.sender().process
    sender.send_signal(signal.SIGSTOP)
    yield
    sender.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def sender_killed(measurement):
    measurement.sender().process.kill()
    yield


FAULTS = {"link cut": link_cut, "1 % of packets lost": packets_lost, "sender stopped": sender_stopped, "sender killed": sender_killed}  # the last one cannot be undone


class FaultMeasurement(Measurement):
    def sender(self):
        return self.first if self.source == "peer" else self.redis

    def read(self, server):
        super().read(server)
        for name in (*FAULTS, UNDISTURBED):
            server.ask(self.args.sender, self.prompts.context, "off", name)

    def expected(self, second):
        """(milliseconds of full prefill, texts of full prefill and of the plan, from node 2's own memory and as they travel,
        which may be coded)"""
        full, text = self.answer(second, "off", secrets.token_hex(8))
        second.ask(self.args.sender, self.prompts.context, "off", "own-long")
        from_plan = [self.answer(second, self.plan(), salt)[1] for salt in ("own-long", UNDISTURBED)]
        return full["ttft_ms"], [text, *from_plan]

    def plan(self):
        return {"sender": self.args.sender, "plan": self.args.plans[0]}

    def answer(self, second, sharing, salt):
        """(what was done, text)"""
        _, answer = second.answer(self.args.receiver, self.prompts.prompt, sharing, salt, FAULT_ANSWER_TOKENS)
        return answer["droidspeak"], answer["choices"][0]["text"]

    def tier(self):
        return "peer" if self.source == "peer" else "remote"

    def bytes_read(self, second):
        return second.tiers()[self.tier()]["bytes_read"]

    def wait_for_load(self, second, before, asking):
        """Until the first bytes of what is asked for are there, and not all. False: the answer was faster."""
        while asking.is_alive() and self.bytes_read(second) == before:
            time.sleep(LOOK_S)
        return asking.is_alive()

    def try_fault(self, name):
        self.network.set_rate(FAULT_MBIT)
        self.network.set_delay("node2", self.args.round_trip_ms, LOST_SHARE)
        second = Server(self.args, self.network, "node2", self.flags("node2"))
        try:
            self.warm_up(second)
            full_ms, texts = self.expected(second)
            outcome = {}
            before = self.bytes_read(second)
            asking = threading.Thread(target=lambda: outcome.update(zip(("done", "text"), self.answer(second, self.plan(), name))))
            asking.start()
            is_loading = self.wait_for_load(second, before, asking)
            with FAULTS[name](self):
                at_fault = self.bytes_read(second)
                asking.join()
            in_time = is_loading and came_in_time(outcome["done"], self.tier(), at_fault, self.bytes_read(second))
            _, after = self.answer(second, "off", secrets.token_hex(8))
        finally:
            second.stop()
            self.network.set_rate(None)
            self.forget_second()
        done = outcome["done"]
        return {"source": self.source, "format": self.form, "fault": name, "full_ms": round(full_ms, 1), "ttft_ms": done["ttft_ms"],
                "beyond_ms": round(done["ttft_ms"] - full_ms, 1), "done": show_done(done), "in_time": in_time,
                "is_right": outcome["text"] in texts, "goes_on": after == texts[0]}


def came_in_time(done, tier, at_fault, at_end):
    """Whether the load was not over when it happened: what came from there whole, and not a byte of it since, was."""
    return done["tier"] != tier or at_end > at_fault


def measure(args, network):
    if not network.can_reach_peers:
        return []
    chosen = {}
    for source, form in configurations(args, network):
        chosen[source] = form  # the smallest entries of each
    rows = []
    for source, form in chosen.items():
        with FaultMeasurement(args, network, source, form) as measurement:
            for name in FAULTS:
                rows.append(measurement.try_fault(name))
                row = rows[-1]
                print(f"  {source} {form}, {name}: {row['ttft_ms']:.0f} ms, full {row['full_ms']:.0f} ms, {row['done']}, {'right' if row['is_right'] else 'WRONG'}", file=sys.stderr, flush=True)
    return rows

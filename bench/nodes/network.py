"""Machines in miniature: a network namespace each, joined by a bridge, their links limited by tc tbf in both directions.
The delay is a packet relay's (packet_relay.py), because netem is not everywhere. Needs root."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

RELAY = Path(__file__).resolve().parent / "packet_relay.py"
LEAST_BURST_BYTES = 16 << 10


class NotPermitted(Exception):
    """Namespaces or tbf cannot be had here."""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotPermitted(f"{' '.join(str(part) for part in command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def tbf_arguments(mbit):
    """Four milliseconds of it at a time: what a timer that comes late would otherwise lose."""
    burst = max(LEAST_BURST_BYTES, int(mbit * 1e6 / 8 / 250))
    return ["tbf", "rate", f"{mbit}mbit", "burst", str(burst), "latency", "50ms"]


class Network:
    """`names` are nodes 10.77.0.1, 10.77.0.2, ...; the links of `delayed` have a relay."""

    can_reach_peers = True

    def __init__(self, names, delayed=()):
        self.prefix = f"dsbench{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.names = list(names)
        self.delayed = list(delayed)
        self.relays = {}
        self.made = []
        try:
            self.build()
        except (NotPermitted, FileNotFoundError) as error:
            self.close()
            raise NotPermitted(str(error)) from error
        except BaseException:
            self.close()
            raise

    def build(self):
        for program in ("ip", "tc"):
            if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
                raise NotPermitted(f"no {program}: install iproute2")
        self.add_namespace(self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge0", "up")
        run("ip", "-n", self.switch, "address", "add", "10.77.0.254/24", "dev", "bridge0")
        for number, name in enumerate(self.names, 1):
            self.add_node(name, number)
        self.set_rate(1000)  # whether tbf can be had is known before anything is measured
        self.set_rate(None)

    def add_namespace(self, namespace):
        run("ip", "netns", "add", namespace)
        self.made.append(namespace)
        run("ip", "netns", "exec", namespace, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true")
        run("ip", "-n", namespace, "link", "set", "lo", "up")

    def add_node(self, name, number):
        namespace = self.namespace(name)
        self.add_namespace(namespace)
        run("ip", "-n", self.switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "-n", self.switch, "link", "set", f"port{number}", "up")
        run("ip", "-n", namespace, "link", "set", "eth0", "up")
        run("ip", "-n", namespace, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
        run("ip", "-n", self.switch, "link", "set", f"port{number}", "master", "bridge0")
        if name in self.delayed:
            run("ip", "-n", self.switch, "link", "add", f"front{number}", "type", "veth", "peer", "name", f"back{number}")
            for link in (f"front{number}", f"back{number}"):
                run("ip", "-n", self.switch, "link", "set", link, "up")

    def namespace(self, name):
        return self.switch if name == "switch" else f"{self.prefix}-{name}"

    def address(self, name):
        return "10.77.0.254" if name == "switch" else f"10.77.0.{self.names.index(name) + 1}"

    def command(self, name, arguments):
        return ["ip", "netns", "exec", self.namespace(name), *[str(part) for part in arguments]]

    def store_address(self, name, port):
        """Where this node finds what listens on a port of the node "store"."""
        return f"{self.address('store')}:{port}"

    def set_rate(self, mbit):
        """Of every link in each direction; None: as fast as it goes."""
        for number, name in enumerate(self.names, 1):
            for namespace, link in ((self.namespace(name), "eth0"), (self.switch, f"port{number}")):
                base = ["tc", "-n", namespace, "qdisc"]
                subprocess.run([*base, "del", "dev", link, "root"], capture_output=True)
                if mbit is not None:
                    run(*base, "add", "dev", link, "root", *tbf_arguments(mbit))

    def set_delay(self, name, round_trip_ms, lost_share=0.0):
        """Half of it each way; without delay and loss there is no relay. Only for the nodes named as delayed."""
        self.stop_relay(name)
        number = self.names.index(name) + 1
        needs_relay = round_trip_ms > 0 or lost_share > 0
        for link, is_joined in ((f"port{number}", not needs_relay), (f"back{number}", needs_relay)):
            run("ip", "-n", self.switch, "link", "set", link, *(["master", "bridge0"] if is_joined else ["nomaster"]))
        if not needs_relay:
            return
        arguments = [sys.executable, RELAY, f"port{number}", f"front{number}", "--delay-ms", round_trip_ms / 2, "--lose", lost_share]
        relay = subprocess.Popen(self.command("switch", arguments), stdout=subprocess.PIPE, text=True)
        self.relays[name] = relay
        if relay.stdout.readline().strip() != "relaying":
            raise NotPermitted("the packet relay did not start")

    def relay_cpu_seconds(self):
        ticks = 0
        for relay in self.relays.values():
            fields = Path(f"/proc/{relay.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def toggle_loss(self, name):
        self.relays[name].send_signal(signal.SIGUSR1)

    def stop_relay(self, name):
        relay = self.relays.pop(name, None)
        if relay:
            relay.terminate()
            relay.wait()

    def close(self):
        for name in list(self.relays):
            self.stop_relay(name)
        for namespace in reversed(self.made):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
        self.made = []

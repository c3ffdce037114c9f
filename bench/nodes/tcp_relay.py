"""A relay of TCP connections with a rate and a delay: what stands in for a network where namespaces are not permitted. It
paces one server's connections together, in each direction. UCX dials further ports than the one it is told, so peers cannot
go through it."""

import queue
import socket
import threading
import time

PIECE_BYTES = 64 << 10
MOST_PIECES = 64  # on their way in one direction of a connection: what a link of 10 Gbit/s and 3 ms holds


class Pace:
    """When bytes are through a link of a rate, whoever sends them. Thread-safe."""

    def __init__(self, bytes_per_second, clock=time.monotonic):
        self.bytes_per_second = bytes_per_second  # None: no limit
        self.clock = clock
        self.free_at = 0.0
        self.lock = threading.Lock()

    def reserve(self, count):
        """Time at which the last of `count` bytes is through."""
        with self.lock:
            now = self.clock()
            if self.bytes_per_second is None:
                return now
            self.free_at = max(self.free_at, now) + count / self.bytes_per_second
            return self.free_at


class TcpRelay:
    """Listens on a port of loopback for a server on another one."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.delay_s = 0.0
        self.paces = [Pace(None), Pace(None)]  # to the server, from it
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = set()
        self.is_closed = False
        threading.Thread(target=self.accept, daemon=True).start()

    def set_rate(self, mbit):
        for pace in self.paces:
            pace.bytes_per_second = None if mbit is None else mbit * 1e6 / 8

    def set_round_trip(self, milliseconds):
        self.delay_s = milliseconds / 2000

    def accept(self):
        while not self.is_closed:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                continue
            self.open |= {client, server}
            for source, target, pace in ((client, server, self.paces[0]), (server, client, self.paces[1])):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self.carry, args=(source, target, pace), daemon=True).start()

    def carry(self, source, target, pace):
        """The delay is each piece's own: one that comes behind another waits for the rate, not for the other's delay."""
        on_the_way = queue.Queue(MOST_PIECES)
        threading.Thread(target=self.deliver, args=(on_the_way, source, target, pace), daemon=True).start()
        try:
            while piece := source.recv(PIECE_BYTES):
                on_the_way.put((pace.reserve(len(piece)) + self.delay_s, piece))
        except OSError:
            pass
        on_the_way.put(None)

    def deliver(self, on_the_way, source, target, pace):
        is_open = True
        while item := on_the_way.get():
            due, piece = item
            left = due - pace.clock()
            if is_open and left > 0:
                time.sleep(left)
            try:
                if is_open:
                    target.sendall(piece)
            except OSError:
                is_open = False  # what comes is taken, so that nobody waits for room
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        """Ends every connection in the middle of what it carries."""
        for end in list(self.open):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.open.clear()

    def close(self):
        self.is_closed = True
        self.listener.close()
        self.cut()


class Loopback:
    """All nodes on 127.0.0.1; only the way of `delayed` nodes to the store is limited."""

    can_reach_peers = False

    def __init__(self, names, delayed=()):
        self.names = list(names)
        self.delayed = list(delayed)
        self.relays = {}
        self.rate = None
        self.round_trip_ms = 0.0

    def address(self, _name):
        return "127.0.0.1"

    def command(self, _name, arguments):
        return [str(part) for part in arguments]

    def store_address(self, name, port):
        if name not in self.delayed:
            return f"127.0.0.1:{port}"
        self.close()
        relay = self.relays[name] = TcpRelay(port)
        self.apply(relay)
        return f"127.0.0.1:{relay.port}"

    def apply(self, relay):
        relay.set_rate(self.rate)
        relay.set_round_trip(self.round_trip_ms)

    def set_rate(self, mbit):
        self.rate = mbit
        for relay in self.relays.values():
            self.apply(relay)

    def set_delay(self, _name, round_trip_ms):
        self.round_trip_ms = round_trip_ms
        for relay in self.relays.values():
            self.apply(relay)

    def relay_cpu_seconds(self):
        return 0.0  # threads of this process

    def close(self):
        for relay in self.relays.values():
            relay.close()
        self.relays = {}

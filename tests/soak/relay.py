"""A link to a server on loopback that stands still, breaks, becomes slow or changes bytes when it is told to."""

import random
import socket
import threading
import time

LOOK = 0.02
PIECE = 65536


class Relay:
    """Carries every connection to its own port on to `port`. `mode`: one of MODES, for all connections at once."""

    MODES = ("fine", "stalled", "reset", "cut", "flipped", "slow")

    def __init__(self, port, seed):
        self.target = port
        self.mode = "fine"
        self.random = random.Random(seed)
        self.ending = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LOOK)
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def close(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()

    def accept(self):
        while not self.ending.is_set():
            try:
                client, _ = self.listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=1)
            except OSError:
                client.close()
                continue
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self.carry, args=(source, sink, is_answer), daemon=True)
                thread.start()

    def carry(self, source, sink, is_answer):
        source.settimeout(LOOK)
        while not self.ending.is_set():
            if self.mode == "stalled":
                time.sleep(LOOK)
                continue
            if self.mode == "reset":
                break
            try:
                data = source.recv(PIECE)
            except TimeoutError:
                continue
            except OSError:
                break
            if not data:
                break
            try:
                if not self.hand_on(sink, data, is_answer):
                    break
            except OSError:
                break
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        if is_answer:  # the other direction may still look at them
            time.sleep(2 * LOOK)
            source.close()
            sink.close()

    def hand_on(self, sink, data, is_answer):
        """False: the connection breaks here."""
        mode = self.mode if is_answer else "fine"
        if mode == "cut" and len(data) > 1000 and self.random.random() < 0.3:
            sink.sendall(data[:self.random.randrange(len(data))])
            return False
        if mode == "flipped" and len(data) > 1000:
            at = self.random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1:]
        if mode == "slow":
            for begin in range(0, len(data), 1024):
                sink.sendall(data[begin:begin + 1024])
                if self.mode != "slow" or self.ending.wait(0.01):
                    sink.sendall(data[begin + 1024:])
                    break
            return True
        sink.sendall(data)
        return True

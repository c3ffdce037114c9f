#!/usr/bin/env python3
"""Carries packets between two network interfaces, each after a delay. On SIGUSR1 it begins to lose a share of them, on the
next one it stops losing. Large segments pass whole (PACKET_VNET_HDR), so it carries some Gbit/s. Needs root. Prints
"relaying" once it does.

  packet_relay.py port1 front1 --delay-ms 0.5 [--lose 0.01] [--seed 1]
"""

import argparse
import collections
import errno
import random
import signal
import socket
import threading
import time

SOL_PACKET = 263
PACKET_VNET_HDR = 15
PACKET_IGNORE_OUTGOING = 23
ETH_P_ALL = 3
LARGEST_BYTES = 70000
MOST_WAITING = 16384  # packets; more are lost, as on a real link


class DelayLine:
    """Packets in, the same packets out once they are old enough. One thread puts, one takes."""

    def __init__(self, delay_s, share=0.0, seed=1, clock=time.monotonic):
        self.delay_s = delay_s
        self.share = share
        self.is_losing = False
        self.random = random.Random(seed)
        self.clock = clock
        self.waiting = collections.deque()
        self.has_some = threading.Condition()

    def put(self, packet):
        if self.is_losing and self.random.random() < self.share:
            return
        with self.has_some:
            if len(self.waiting) < MOST_WAITING:
                self.waiting.append((self.clock() + self.delay_s, packet))
                self.has_some.notify()

    def take(self):
        """The next packet, when it is due."""
        with self.has_some:
            while not self.waiting:
                self.has_some.wait()
            due, packet = self.waiting.popleft()
        left = due - self.clock()
        if left > 0:
            time.sleep(left)
        return packet


def open_interface(name):
    interface = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    interface.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    interface.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        interface.setsockopt(socket.SOL_SOCKET, option, 16 << 20)
    interface.bind((name, ETH_P_ALL))
    return interface


def send(interface, packet):
    try:
        interface.send(packet)
    except OSError as error:
        # A queue that is full loses packets, as a switch does.
        if error.errno not in (errno.ENOBUFS, errno.EAGAIN, errno.EMSGSIZE, errno.EINVAL):
            raise


def carry(source, target, line):
    def take_all():
        while True:
            send(target, line.take())

    threading.Thread(target=take_all, daemon=True).start()
    while True:
        line.put(source.recv(LARGEST_BYTES))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--delay-ms", type=float, default=0, help="each way")
    parser.add_argument("--lose", type=float, default=0, help="share of the packets, once it is told to")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    first, second = open_interface(args.first), open_interface(args.second)
    lines = [DelayLine(args.delay_ms / 1000, args.lose, args.seed + i) for i in range(2)]

    def toggle(*_):
        for line in lines:
            line.is_losing = not line.is_losing
    signal.signal(signal.SIGUSR1, toggle)
    threading.Thread(target=carry, args=(first, second, lines[0]), daemon=True).start()
    print("relaying", flush=True)
    carry(second, first, lines[1])


if __name__ == "__main__":
    main()

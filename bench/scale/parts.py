"""What a simulated cluster consists of: things that are busy, memories, nodes, requests."""

import collections
import dataclasses

from costs import FRAME_SHARE

ALL_ADAPTERS = 1 << 30


@dataclasses.dataclass
class Options:
    nodes: int
    sources: tuple  # of ("peer", form) and ("redis", form), in the order in which they are asked
    plan: str = "0,16,24"
    link_bytes_per_second: float = 1.25e8
    round_trip_s: float = 0.001
    routing: str = "contexts"  # or "turns"
    memory_bytes: float = 64e9  # of a node, for caches
    store_bytes: float = 256e9  # of all Redis servers together
    shards: int = 1  # Redis servers
    adapters: int = ALL_ADAPTERS  # resident on a node; what is not is loaded first, in a time that costs say
    answer_tokens: int = 16
    shared_cores: bool = False  # all nodes compute on the same cores, as those of bench/nodes do


class Busy:
    """Something that does one thing after another."""

    def __init__(self, rate=1.0):
        self.rate = rate
        self.free_at = 0.0
        self.used = 0.0

    def reserve(self, now, amount):
        """When it is done."""
        self.free_at = max(self.free_at, now) + amount / self.rate
        self.used += amount
        return self.free_at

    def estimate(self, now, amount):
        return max(self.free_at, now) + amount / self.rate


class Memory:
    """Entries in the order of use, up to a size."""

    def __init__(self, capacity, on_evict=None):
        self.capacity = capacity
        self.entries = collections.OrderedDict()
        self.bytes = 0.0
        self.evictions = 0
        self.on_evict = on_evict

    def __contains__(self, key):
        return key in self.entries

    def touch(self, key):
        self.entries.move_to_end(key)

    def put(self, key, size):
        if key in self.entries:
            self.entries.move_to_end(key)
            return
        if size > self.capacity:
            return
        self.entries[key] = size
        self.bytes += size
        while self.bytes > self.capacity:
            old, old_size = self.entries.popitem(last=False)
            self.bytes -= old_size
            self.evictions += 1
            if self.on_evict:
                self.on_evict(old)


class Node:
    def __init__(self, number, options, engine, forget):
        self.number = number
        self.engine = engine
        self.memory = Memory(options.memory_bytes, lambda key: forget(key, number))
        self.up = Busy(options.link_bytes_per_second * FRAME_SHARE)
        self.down = Busy(options.link_bytes_per_second * FRAME_SHARE)
        self.running = 0
        self.waiting_bytes = 0.0  # of what is being written to the store
        self.adapters = Memory(options.adapters)


@dataclasses.dataclass
class Request:
    context: int
    tokens: int
    variant: int
    is_reading: bool
    workflow: object
    arrival: float
    node: object = None


@dataclasses.dataclass
class Workflow:
    """A base that reads, then variants that answer one after another."""

    context: int
    tokens: int
    variants: list
    position: int = -1  # of the answer that runs; -1: the reading


@dataclasses.dataclass
class Choice:
    """How a request is answered."""

    found: str  # "own host", "own peer", "own redis", "base host", ..., "full"
    compute_s: float
    load_bytes: float = 0.0
    sender: object = None  # a node; None: the store
    way: object = None

"""A cluster as events: nodes that compute one thing after another, their memories, their links, a store in Redis that is
also the directory. Contexts are whole things here, not blocks; what a queue is in the product is a time until which
something is busy."""

import collections
import hashlib
import heapq
import itertools

from costs import BLOCK_TOKENS, FRAME_SHARE
from parts import ALL_ADAPTERS, Busy, Choice, Memory, Node, Request

BASE = 0  # the variant that reads, and that all others have a plan book from
LONGEST_LOOK_UP_S = 0.1
RECORD_EVERY_S = 300.0  # a block's record is written anew
PIECE_BYTES = 64 << 10  # that Redis takes from a connection at a time
RECORD_BYTES = 300  # in Redis's memory, its name and overhead included
MOST_RECORDS = 1 << 18  # that one node keeps telling of
DECODE_TOGETHER = 3.2  # times the tokens of one sequence that a batch of eight makes (bench/results/cpu.md)
LOAD_BOUND = 2.0  # no node runs more than so many times its share


def num_blocks(tokens):
    return -(-tokens // BLOCK_TOKENS)


class Cluster:
    def __init__(self, options, costs):
        self.options = options
        self.costs = costs
        self.ways = {source: costs.ways[f"{source} {form}"] for source, form in options.sources}
        self.holders = {}  # the directory: (context, variant) -> (number of the node that wrote last, blocks)
        shared = Busy() if options.shared_cores else None
        self.nodes = [Node(i, options, shared or Busy(), self.forget) for i in range(options.nodes)]
        self.store = Memory(options.store_bytes)
        self.store_up = Busy(options.shards * options.link_bytes_per_second * FRAME_SHARE)
        self.store_down = Busy(options.shards * options.link_bytes_per_second * FRAME_SHARE)
        # Seconds of Redis's threads: small commands, and values, which do not keep the small ones waiting for longer than one
        # turn of all connections.
        self.directory = Busy(options.shards)
        self.values = Busy(options.shards)
        self.num_writing = 0  # nodes
        self.mixed = set()  # keys of what plans have left: only of use beside the base's
        self.events = []
        self.last_answer = 0.0
        self.order = itertools.count()
        self.turn = 0
        self.total_running = 0
        self.arriving = 0
        self.now = 0.0
        self.answers = []  # (found, ttft, what full prefill alone would have taken)
        self.readings = collections.Counter()  # by where it was found
        self.counts = collections.Counter()
        self.records = 0  # of blocks, in the directory
        self.most_records = 0

    # Time

    def at(self, time, action, *arguments):
        heapq.heappush(self.events, (time, next(self.order), action, arguments))

    def run(self, workflows):
        """Plays (time, Workflow) pairs to their end; the time of the last answer."""
        for time, workflow in workflows:
            self.arriving += 1
            self.at(time, self.arrive, workflow)
        if "peer" in self.ways:
            self.at(1.0, self.tell_anew)
        while self.events:
            self.now, _, action, arguments = heapq.heappop(self.events)
            action(*arguments)
        return self.last_answer

    def tell_anew(self):
        """A second's share of the records that are written again."""
        told = min(self.records, len(self.nodes) * MOST_RECORDS) / RECORD_EVERY_S
        self.counts["records told anew"] += told
        self.directory.reserve(self.now, told * self.costs.record_s)
        if self.total_running or self.arriving:
            self.at(self.now + 1.0, self.tell_anew)

    # The front

    def arrive(self, workflow):
        self.arriving -= 1
        self.step(workflow)

    def step(self, workflow):
        is_reading = workflow.position < 0
        variant = BASE if is_reading else workflow.variants[workflow.position]
        request = Request(workflow.context, workflow.tokens, variant, is_reading, workflow, self.now)
        request.node = self.route(request)
        request.node.running += 1
        self.total_running += 1
        self.begin(request)

    def route(self, request):
        if self.options.routing == "turns":
            self.turn += 1
            return self.nodes[(self.turn - 1) % len(self.nodes)]
        digest = hashlib.blake2b(request.context.to_bytes(8, "little"), digest_size=8).digest()
        place = int.from_bytes(digest, "little") % len(self.nodes)
        bound = LOAD_BOUND * (self.total_running + 1) / len(self.nodes)
        for i in range(len(self.nodes)):
            node = self.nodes[(place + i) % len(self.nodes)]
            if node.running + 1 <= max(bound, 1):
                return node
        return self.nodes[place]

    # A request

    def begin(self, request):
        """Own caches and the base's are looked up in one go; later than 0.1 s nothing is known of elsewhere."""
        if not self.ways:
            return self.plan(request, False)
        keys = num_blocks(request.tokens) * (1 if request.variant == BASE else 2)
        self.counts["look-ups"] += keys * len(self.ways)
        half = self.options.round_trip_s / 2
        work = keys * sum(self.costs.look_up_s if source == "redis" else self.costs.record_s for source in self.ways)
        done = self.directory.reserve(self.now + half, work) + self.turn_s() + half
        is_known = done - self.now <= LONGEST_LOOK_UP_S
        self.counts["late look-ups"] += not is_known
        self.at(min(done, self.now + LONGEST_LOOK_UP_S), self.plan, request, is_known)

    def turn_s(self):
        """Until Redis has seen to all who write to it, a piece each."""
        if "redis" not in self.ways:
            return 0.0
        backlog = max(0.0, self.values.free_at - self.now)
        return min(backlog, self.num_writing * PIECE_BYTES * self.ways["redis"].store_busy_per_byte / self.options.shards)

    def plan(self, request, elsewhere_is_known):
        node, costs = request.node, self.costs
        choice = self.choose(request, elsewhere_is_known)
        start = self.now
        if self.options.adapters < ALL_ADAPTERS:
            if request.variant != BASE and request.variant not in node.adapters:
                self.counts["adapter loads"] += 1
                start += costs.adapter_s
            node.adapters.put(request.variant, 1)
        compute, loaded = choice.compute_s, start
        if choice.load_bytes:
            loaded = self.load(node, choice)
            compute += self.loading_s(choice.way, choice.load_bytes)
        computed = node.engine.reserve(start, compute)
        first_token = max(computed, loaded + costs.own.fixed)
        if request.is_reading:
            self.readings[choice.found] += 1
        else:
            self.answers.append((choice.found, first_token - request.arrival, costs.full(request.tokens)))
        answer_s = costs.token_s * (0 if request.is_reading else self.options.answer_tokens - 1)
        node.engine.reserve(computed, answer_s / DECODE_TOGETHER)
        self.at(first_token + answer_s, self.finish, request, choice)

    def loading_s(self, way, size):
        """Of computing time that a load takes away from its receiver."""
        busy = way.busy_per_byte
        if self.options.shared_cores:
            busy += way.sender_busy_per_byte + way.store_busy_per_byte + way.relay_busy_per_byte
        return size * busy / self.costs.cores

    def choose(self, request, elsewhere_is_known):
        """What lies nearest; of what lies elsewhere only what comes sooner than computing."""
        node, costs, options = request.node, self.costs, self.options
        own, base = (request.context, request.variant), (request.context, BASE)
        full = costs.reading(request.tokens) if request.variant == BASE else costs.full(request.tokens)
        plan_s = costs.plans[options.plan](request.tokens)
        if own in node.memory and (own not in self.mixed or base in node.memory):
            node.memory.touch(own)
            return Choice("own host", costs.own(request.tokens))
        if request.variant != BASE and base in node.memory:
            node.memory.touch(base)
            return Choice("base host", plan_s)
        best = Choice("full", full)
        best_end = node.engine.estimate(self.now, full)
        if not elsewhere_is_known:
            return best
        candidates = [(base, "base", plan_s, options.plan)] if request.variant != BASE else []
        if own not in self.mixed or self.find(base, node):
            candidates.append((own, "own", costs.own(request.tokens), "reuse"))
        for key, name, compute, plan in candidates:
            for source, way, sender in self.find(key, node):
                size = way.bytes_per_token.get(plan, way.bytes_per_token["reuse"]) * request.tokens
                end = max(node.engine.estimate(self.now, compute + self.loading_s(way, size)), self.arrival_of(node, sender, way, size) + costs.own.fixed)
                if end < best_end:
                    best, best_end = Choice(f"{name} {source}", compute, size, sender, way), end
        return best

    def find(self, key, node):
        """(source, way, sender), in the order in which they are asked; the first one that has it counts."""
        for source, way in self.ways.items():
            if source == "redis" and key in self.store:
                self.store.touch(key)
                return [(source, way, None)]
            if source == "peer" and key in self.holders:
                number, _ = self.holders[key]
                if number != node.number:
                    return [(source, way, self.nodes[number])]
        return []

    # What travels

    def arrival_of(self, node, sender, way, size):
        up = self.store_up if sender is None else sender.up
        read = self.values.estimate(self.now, size * way.store_busy_per_byte) if sender is None else self.now
        return max(up.estimate(self.now, size), node.down.estimate(self.now, size), read, self.now + size / way.bytes_per_second) + self.options.round_trip_s

    def load(self, node, choice):
        """When all of it is there."""
        size, sender, way = choice.load_bytes, choice.sender, choice.way
        arrival = self.arrival_of(node, sender, way, size)
        node.down.reserve(self.now, size)
        if sender is None:
            self.store_up.reserve(self.now, size)
            reads = self.costs.values_per_block * size / (BLOCK_TOKENS * way.bytes_per_token["reuse"])
            self.values.reserve(self.now, size * way.store_busy_per_byte)
            self.counts["reads"] += reads
            self.counts["bytes from redis"] += size
            return arrival
        sender.up.reserve(self.now, size)
        if not self.options.shared_cores:
            sender.engine.reserve(self.now, size * way.sender_busy_per_byte / self.costs.cores)
        self.counts["bytes from peers"] += size
        return arrival

    # What stays

    def finish(self, request, choice):
        node, costs = request.node, self.costs
        self.last_answer = self.now
        node.running -= 1
        self.total_running -= 1
        size = request.tokens * costs.memory_bytes_per_token
        if choice.load_bytes:
            is_base = choice.found.startswith("base") or (request.context, request.variant) in self.mixed
            node.memory.put((request.context, BASE if is_base else request.variant), size)
        if choice.found == "full":
            self.keep(request, choice, 1.0)
        elif choice.found.startswith("base"):
            self.keep(request, choice, costs.mixed_share)
        workflow = request.workflow
        workflow.position += 1
        if workflow.position < len(workflow.variants):
            self.at(self.now, self.step, workflow)

    def place(self, node, key, size):
        """In memory and store, as if it had always been there."""
        node.memory.put(key, size)
        self.holders[key] = (node.number, 0)
        self.store.put(key, size)

    def keep(self, request, choice, share):
        """A share of the context in the node's memory; told to the directory, written to the store while it is computed."""
        node, key = request.node, (request.context, request.variant)
        size = share * request.tokens * self.costs.memory_bytes_per_token
        (self.mixed.add if share < 1 else self.mixed.discard)(key)
        is_new = key not in node.memory
        node.memory.put(key, size)
        if is_new and "peer" in self.ways and key in node.memory:
            self.tell(node, key, num_blocks(request.tokens))
        if "redis" not in self.ways or key in self.store:
            return
        wire = size * self.ways["redis"].bytes_per_token["reuse"] / self.costs.memory_bytes_per_token
        values = self.costs.values_per_block * wire / (BLOCK_TOKENS * self.ways["redis"].bytes_per_token["reuse"])
        if node.waiting_bytes + size > self.options.memory_bytes / 2:
            self.counts["dropped writes"] += 1
            return
        self.counts["bytes written"] += wire
        self.counts["writes"] += values
        self.num_writing += node.waiting_bytes == 0
        node.waiting_bytes += size
        begin = self.now - choice.compute_s
        written = max(node.up.reserve(begin, wire), self.store_down.reserve(begin, wire), self.values.reserve(begin, wire * self.ways["redis"].store_busy_per_byte))
        self.at(max(written, self.now), self.write, node, key, size, wire)

    def write(self, node, key, size, wire):
        node.waiting_bytes = max(0.0, node.waiting_bytes - size)
        if node.waiting_bytes < 1:
            node.waiting_bytes = 0.0
            self.num_writing -= 1
        self.store.put(key, wire)

    def tell(self, node, key, blocks):
        """The last one who computed it counts."""
        _, before = self.holders.get(key, (0, 0))
        self.holders[key] = (node.number, blocks)
        self.records += blocks - before
        self.most_records = max(self.most_records, self.records)
        self.counts["records written"] += blocks
        self.directory.reserve(self.now, blocks * self.costs.record_s)

    def forget(self, key, number):
        if key in self.holders and self.holders[key][0] == number:
            self.records -= self.holders.pop(key)[1]

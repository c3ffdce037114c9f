"""What things cost, as measured: the input of the simulator. `from_nodes` reads what `bench/nodes` writes; `load` reads a
file of costs, such as h200.json, or a file of `bench/nodes`."""

import dataclasses
import json
import statistics

BLOCK_TOKENS = 64
LAYERS_TOGETHER = 4  # in one value of Redis
FRAME_SHARE = 1448 / 1514  # of a link's bytes that TCP's payload is


@dataclasses.dataclass(frozen=True)
class Curve:
    """Seconds by number of tokens: fixed + linear n + square n^2."""

    fixed: float
    linear: float
    square: float = 0.0

    def __call__(self, tokens):
        return max(0.0, self.fixed + self.linear * tokens + self.square * tokens * tokens)


def fit(points):
    """Least squares through (tokens, seconds); with fewer than three lengths a line, with one a proportion. Relative
    errors count, or short contexts would not matter."""
    lengths = sorted({tokens for tokens, _ in points})
    terms = min(len(lengths), 3)
    powers = {1: [1], 2: [0, 1], 3: [0, 1, 2]}[terms]
    rows = [([tokens ** power / seconds for power in powers], 1.0) for tokens, seconds in points]
    solved = solve_least_squares(rows)
    values = dict(zip(powers, solved))
    return Curve(values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))


def solve_least_squares(rows):
    """x that minimises |A x - b| for rows (a, b), by the normal equations; columns are scaled first."""
    size = len(rows[0][0])
    scale = [max(abs(a[i]) for a, _ in rows) or 1.0 for i in range(size)]
    scaled = [([a[i] / scale[i] for i in range(size)], b) for a, b in rows]
    matrix = [[sum(a[i] * a[j] for a, _ in scaled) for j in range(size)] + [sum(a[i] * b for a, b in scaled)] for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(size):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [x - factor * y for x, y in zip(matrix[row], matrix[i])]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]


@dataclasses.dataclass(frozen=True)
class Way:
    """How entries come from elsewhere: (source, format)."""

    bytes_per_token: dict  # by plan: what a load reads
    bytes_per_second: float  # at most, whatever the link
    busy_per_byte: float  # processor seconds of the receiver
    sender_busy_per_byte: float = 0.0
    store_busy_per_byte: float = 0.0  # of Redis's one thread
    relay_busy_per_byte: float = 0.0  # of what carries packets in bench/nodes


@dataclasses.dataclass(frozen=True)
class Costs:
    name: str
    full: Curve  # a receiver's full prefill
    reading: Curve  # the sender's
    plans: dict  # plan -> Curve, everything in host memory
    own: Curve  # from the variant's own cache in host memory
    ways: dict  # "redis int8" -> Way
    memory_bytes_per_token: float  # of a context in host memory
    mixed_share: float  # of it, what an answer with a plan adds
    token_s: float  # a token of an answer
    cores: int  # that a node computes with
    look_up_s: float  # Redis's thread: what it takes to say whether a block is there
    record_s: float  # the same for reading or writing a record of the directory
    values_per_block: int  # commands that read or write a block
    adapter_s: float  # loading one


def fit_medians(rows, read):
    by_length = {}
    for row in rows:
        by_length.setdefault(row["tokens"], []).append(read(row) / 1000)
    return fit([(tokens, statistics.median(values)) for tokens, values in by_length.items()])


def way_of(document, samples, host):
    """From the loads that nothing is computed beside, on links without a limit, against the same from host memory."""
    tokens = document["tokens"]
    tier = "peer" if samples[0]["source"] == "peer" else "remote"
    loads = [row for row in samples if row["plan"] == "reuse" and row["tiers"][tier]["bytes_read"] > 0]
    if not loads:
        return None
    size = statistics.median(row["tiers"][tier]["bytes_read"] for row in loads)
    extra = max(min(row["ttft_ms"] for row in loads) - min(row["ttft_ms"] for row in host), 1.0) / 1000
    busy = {name: max(0.0, statistics.median(row["cpu_s"][name] for row in loads) - statistics.median(row["cpu_s"][name] for row in host)) / size for name in loads[0]["cpu_s"]}
    sizes = {}
    for row in samples:
        # A load that was given up, or another plan's, tells nothing.
        if row["done"]["sender"] and row["done"]["plan"] != "full" and row["tiers"][tier]["bytes_read"] > 0:
            sizes.setdefault(row["plan"], []).append(row["tiers"][tier]["bytes_read"] / tokens)
    return Way({plan: statistics.median(values) for plan, values in sizes.items()}, size / extra, busy["node2"], busy["node1"], busy["store"], busy["relay"])


def values_per_block(num_layers):
    """Four layers' K/V in one value, and one layer's input."""
    return -(-num_layers // LAYERS_TOGETHER) + 1


def from_nodes(document, name="nodes"):
    samples, costs = document["samples"], document["costs"]
    missing = [name for name in ("samples", "costs", "directory") if not document.get(name)]
    if missing:
        raise ValueError(f"no {', no '.join(missing)}: it takes a run of bench/nodes with --only costs,directory,reading")
    host = [row for row in samples if row["source"] == "host" and row["plan"] == "reuse"]
    ways = {}
    for source, form in dict.fromkeys((row["source"], row["format"]) for row in samples if row["source"] != "host"):
        way = way_of(document, [row for row in samples if (row["source"], row["format"]) == (source, form)], host)
        if way:
            ways[f"{source} {form}"] = way
    memory = ways.get("peer memory") or ways.get("peer raw") or ways.get("redis raw") or next(iter(ways.values()))
    return Costs(name, fit_medians(costs, lambda row: row["full_ms"]), fit_medians(costs, lambda row: row["reading_ms"]),
                 {plan: fit_medians(costs, lambda row, plan=plan: row["plans_ms"][plan]) for plan in costs[0]["plans_ms"]}, fit_medians(costs, lambda row: row["own_ms"]),
                 ways, memory.bytes_per_token["reuse"], document["recomputed_share"], statistics.median(row["token_ms"] for row in costs) / 1000, document["threads"], document["directory"]["look_up_s"], document["directory"]["record_s"],
                 values_per_block(document["num_layers"]), statistics.median(row["adapter_ms"] for row in costs) / 1000)


def from_file(document):
    curves = {name: Curve(*document[name]) for name in ("full", "reading", "own")}
    plans = {plan: Curve(*values) for plan, values in document["plans"].items()}
    ways = {name: Way(**values) for name, values in document["ways"].items()}
    rest = {name: document[name] for name in ("name", "memory_bytes_per_token", "mixed_share", "token_s", "cores", "look_up_s", "record_s", "values_per_block", "adapter_s")}
    return Costs(plans=plans, ways=ways, **curves, **rest)


def load(path):
    document = json.loads(path.read_text())
    return from_nodes(document, path.stem) if "samples" in document else from_file(document)

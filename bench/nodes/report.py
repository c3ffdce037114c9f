"""Figures of the samples, whether what is promised holds, and both as Markdown."""

import statistics

ASKED_TOKENS = 4096
LEAST_SPEEDUP = 2.8  # at 1 Gbit/s and 1 ms
MOST_OVER_HOST = 1.10  # at 10 Gbit/s
MOST_OVER_FULL = 1.05  # at any rate
MOST_QUIET_LOAD = 1.5  # a core: two servers that take turns make 1
MOST_BEYOND_MS = 500.0  # full prefill, whatever goes wrong
FAULT_ANSWER_TOKENS = 8


def show_rate(mbit):
    if mbit is None:
        return "-"
    return f"{mbit / 1000:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def show_done(done):
    if done["sender"]:
        return f"{done['plan']} from {done['tier']}"
    return f"its own cache from {done['tier']}" if done["tier"] else "full prefill"


def spread(values):
    return {"median": round(statistics.median(values), 3), "least": round(min(values), 3), "most": round(max(values), 3)}


def summarize(samples):
    """One entry for each case, in the order in which they were measured. Speed-ups are of each sample's own full prefill."""
    cases = {}
    for sample in samples:
        if not sample["full_ms"] or sample["plan"] == "reuse":
            continue  # what loading alone takes: for the simulator
        key = (sample["source"], sample["format"], sample["mbit"], sample["round_trip_ms"], sample["plan"])
        cases.setdefault(key, []).append(sample)
    rows = []
    for (source, form, mbit, round_trip_ms, plan), group in cases.items():
        tier = "peer" if source == "peer" else "remote"
        rows.append({"source": source, "format": form, "mbit": mbit, "round_trip_ms": round_trip_ms, "plan": plan, "n": len(group),
                     "ttft_ms": spread([row["ttft_ms"] for row in group]), "full_ms": spread([row["full_ms"] for row in group]),
                     "speedup": spread([row["full_ms"] / row["ttft_ms"] for row in group]), "over_full": spread([row["ttft_ms"] / row["full_ms"] for row in group]),
                     "best": round(min(row["full_ms"] for row in group) / min(row["ttft_ms"] for row in group), 3),
                     "megabytes": round(statistics.median(row["tiers"].get(tier, {}).get("bytes_read", 0) for row in group) / 1e6, 2),
                     "done": sorted({show_done(row["done"]) for row in group})})
    return rows


def came_from(row, source):
    """Whether what a case is about was read from there, every time: a peer's caches may be in Redis as well."""
    return all(done.endswith(" from peer" if source == "peer" else " from remote") for done in row["done"])


def check(rows, fixed_plan):
    """What must hold, as (text, holds or None where nothing says so)."""
    host = {row["plan"]: row["ttft_ms"]["median"] / row["full_ms"]["median"] for row in rows if row["source"] == "host"}
    found = []
    for source in ("redis", "peer"):
        at_gigabit = [row for row in rows if row["source"] == source and row["mbit"] == 1000 and row["round_trip_ms"] >= 1 and row["plan"] == fixed_plan and came_from(row, source)]
        best = max(at_gigabit, key=lambda row: row["speedup"]["median"], default=None)
        text = f"1 Gbit/s and 1 ms from {'Redis' if source == 'redis' else 'a peer'}, plan {fixed_plan}: at least {LEAST_SPEEDUP}x faster than full prefill"
        found.append((text, None if best is None else best["speedup"]["median"] >= LEAST_SPEEDUP,
                      "not measured" if best is None else f"{best['speedup']['median']:.2f}x ({best['format']})"))
        fast = [row for row in rows if row["source"] == source and row["mbit"] == 10000 and row["plan"] == fixed_plan and came_from(row, source)]
        best = min(fast, key=lambda row: row["over_full"]["median"], default=None)
        over = None if best is None or fixed_plan not in host else best["over_full"]["median"] / host[fixed_plan]
        text = f"10 Gbit/s from {'Redis' if source == 'redis' else 'a peer'}, plan {fixed_plan}: within 10 % of the host tier"
        found.append((text, None if over is None else over <= MOST_OVER_HOST, "not measured" if over is None else f"{over:.3f} of it ({best['format']})"))
    remote = [row for row in rows if row["source"] != "host"]
    worst = max(remote, key=lambda row: row["over_full"]["median"], default=None)
    found.append((f"never slower than {MOST_OVER_FULL} of full prefill", None if worst is None else worst["over_full"]["median"] <= MOST_OVER_FULL,
                  "not measured" if worst is None else f"worst {worst['over_full']['median']:.3f} ({worst['source']} {worst['format']}, {show_rate(worst['mbit'])}, {worst['plan']})"))
    return found


def was_in_time(row):
    return row.get("in_time", True)  # results of before it was looked at


def fault_holds(row):
    """None: the load was over before anything went wrong."""
    if not was_in_time(row):
        return None
    return row["is_right"] and row["goes_on"] and row["beyond_ms"] <= MOST_BEYOND_MS


def check_faults(rows):
    """The same for what went wrong on the way: every case must hold."""
    if not rows:
        return [(f"whatever goes wrong: right answers, at most {MOST_BEYOND_MS:.0f} ms beyond full prefill", None, "not measured")]
    found = []
    for row in rows:
        text = f"{row['fault']} while loading from {'Redis' if row['source'] == 'redis' else 'a peer'}: right answers, at most {MOST_BEYOND_MS:.0f} ms beyond full prefill"
        said = "the load was over before" if not was_in_time(row) else f"{row['beyond_ms']:+.0f} ms, {'right' if row['is_right'] else 'wrong'}, the next {'right' if row['goes_on'] else 'wrong'}"
        found.append((text, fault_holds(row), said))
    return found


def reading_table(rows):
    lines = ["| source | format | link | delay | plan | TTFT ms (least, most) | full prefill ms | speed-up (least, most) | of the least times | MB | done |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        ttft, speedup = row["ttft_ms"], row["speedup"]
        delay = f"{row['round_trip_ms']:g} ms" if row["round_trip_ms"] else "-"
        lines.append(f"| {row['source']} | {row['format']} | {show_rate(row['mbit'])} | {delay} | {row['plan']} | {ttft['median']:.0f} ({ttft['least']:.0f}, {ttft['most']:.0f}) | "
                     f"{row['full_ms']['median']:.0f} | {speedup['median']:.2f}x ({speedup['least']:.2f}, {speedup['most']:.2f}) | {row['best']:.2f}x | {row['megabytes']:.1f} | {'; '.join(row['done'])} |")
    return lines


def check_table(found):
    lines = ["| what must hold | measured | |", "|---|---|---|"]
    return lines + [f"| {text} | {measured} | {'not measured' if holds is None else 'holds' if holds else '**fails**'} |" for text, holds, measured in found]


def fault_table(rows):
    lines = ["| source | format | fault while it loads | TTFT ms | full prefill ms | beyond it | done | answer | next answer |", "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['source']} | {row['format']} | {row['fault']}{'' if was_in_time(row) else ' (too late: the load was over)'} | {row['ttft_ms']:.0f} | {row['full_ms']:.0f} | {row['beyond_ms']:+.0f} ms{'' if row['beyond_ms'] <= MOST_BEYOND_MS else ' **fails**'} | "
                     f"{row['done']} | {'right' if row['is_right'] else '**wrong**'} | {'right' if row['goes_on'] else '**wrong**'} |")
    return lines


def trace_table(rows):
    lines = ["| servers | routed by | answers | TTFT p50, p95 ms (one server without sharing) | requests that found something in: host, peer, remote | "
             "MB read from peers, from Redis | MB written to Redis | Redis commands |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        served, off, found = row["servers_row"], row["off_row"], row["hits"]
        read = {name: row["tiers"].get(name, {}).get("bytes_read", 0) / 1e6 for name in ("peer", "remote")}
        lines.append(f"| {row['servers']} | {row['routing']} | {served['answers']} ({served['failed']} failed) | {served['ttft_ms_p50']:.0f}, {served['ttft_ms_p95']:.0f} "
                     f"({off['ttft_ms_p50']:.0f}, {off['ttft_ms_p95']:.0f}) | {found.get('host', 0)}, {found.get('peer', 0)}, {found.get('remote', 0)} of {row['requests']} | "
                     f"{read['peer']:.0f}, {read['remote']:.0f} | {row['redis']['total_net_input_bytes'] / 1e6:.0f} | {row['redis']['total_commands_processed']} |")
    return lines


def show_number(rows):
    """How often each case was measured."""
    found = sorted({row["n"] for row in rows})
    return "" if not found else f"N = {found[0]} samples each, " if len(found) == 1 else f"N = {found[0]} to {found[-1]} samples each, "


def markdown(document):
    """The results file: command, machine, what holds, the tables."""
    machine = document["machine"]
    lines = ["# Many nodes on one machine", "", f"`{document['command']}`, {show_number(document['reading'])}{document['tokens']} tokens of context. {machine['cores']} cores ({machine['cpu']}), "
             f"load {machine['load_before']:.1f} before and {machine['load_after']:.1f} after the run, {document['date']}. {document['network']}", ""]
    if max(machine["load_before"], machine["load_after"]) > MOST_QUIET_LOAD * machine["cores"]:
        lines += ["**Taken beside other work: times are several times those of a quiet machine, and a ratio of two times that were taken one after the other can be off by a third or more. "
                  "They show what works and what is found where; whether the figures hold takes a quiet machine.**", ""]
    lines += ["Node 1 is `{sender}` and has read the context, node 2 answers as `{receiver}`. Both, Redis and the network take the same cores: what sending costs node 1 is taken from "
              "node 2's computing here. A speed-up is against full prefill on the same node 2 in the same sample; median (least, most).".format(**document), ""]
    if document["reading"]:
        asked = [] if document["tokens"] == ASKED_TOKENS else [f"This is asked of {ASKED_TOKENS} tokens; the run has {document['tokens']}, so it decides nothing.", ""]
        lines += ["## What must hold", "", *asked, *check_table(document["checks"]), "", "## Time to first token on node 2", "", *reading_table(document["reading"]), ""]
        if any(row["source"] == "peer" and any(done.endswith(" from remote") for done in row["done"]) for row in document["reading"]):
            lines += ["Rows of source `peer` whose `done` says `remote` were served by Redis, which the server preferred: they say nothing of peers and decide nothing above.", ""]
    if document.get("faults"):
        lines += ["## When something goes wrong on the way", "", f"1 Gbit/s, plan {document['plans'][0]}; right is what full prefill or the plan answers ({FAULT_ANSWER_TOKENS} tokens), at most {MOST_BEYOND_MS:.0f} ms beyond full prefill.", "",
                  *fault_table(document["faults"]), ""]
    if document["trace"]:
        lines += ["## The agents' trace over several servers", "", document["trace_note"], "", *trace_table(document["trace"]), ""]
    return "\n".join(lines)

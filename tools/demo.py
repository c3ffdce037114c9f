#!/usr/bin/env python3
"""The product's main job on the default family, through the real server: a sender reads long contexts, the
receiver answers questions on them with full prefill, plain reuse of the sender's cache, and DroidSpeak.
Prints a table, writes out/demo/result.json and out/demo/report.html."""
import argparse
import collections
import gzip
import html
import http.client
import json
import os
import re
import signal
import statistics
import string
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = "You are a helpful assistant. Read the documents and do what the user asks."
MODES = {"full": "off", "reuse": "reuse", "droidspeak": "auto"}


def normalize(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(answer, gold):
    answer, gold = normalize(answer), normalize(gold)
    common = sum((collections.Counter(answer) & collections.Counter(gold)).values())
    if not common:
        return float(answer == gold)
    precision, recall = common / len(answer), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


class Server:
    """The real server on a free loopback port."""

    def __init__(self, binary, family, min_quality, log):
        self.log = open(log, "w")
        self.process = subprocess.Popen([binary, "serve", "--family", family, "--host", "127.0.0.1", "--port", "0", "--kv-memory", "1GiB", "--cache-memory", "3GiB",
                                         "--min-quality", str(min_quality)],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        for line in self.process.stdout:
            match = re.search(r"listening on http://[^:]+:(\d+)", line)
            if match:
                self.port = int(match.group(1))
                return
        sys.exit(f"the server did not start; see {log}")

    def ask(self, model, context, question, max_tokens, sharing, salt):
        body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "sharing": sharing, "cache_salt": salt,
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{context}\n\n{question}"}]}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            sys.exit(f"the server answered {response.status}: {answer}")
        return answer

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def load_rows(path, limit):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return rows[:limit]


def run(server, rows, sender, receiver):
    results = {mode: {"ttft": [], "f1": [], "answers": [], "plans": []} for mode in MODES}
    tokens = []
    for i, row in enumerate(rows):
        context = "\n\n".join(f"{d['title']}: {d['text']}" for d in row["documents"])
        question = "Question: " + row["question"]
        salt = f"demo-{i}"
        server.ask(sender, context, question, 1, "off", salt)
        # Each mode has the sender's cache but none of the receiver's own: a salt of its own for full
        # prefill, and mixed caches are never taken for another plan.
        for mode, plan in MODES.items():
            sharing = "off" if plan == "off" else {"sender": sender, "plan": plan}
            answer = server.ask(receiver, context, question, 32, sharing, salt + "-full" if mode == "full" else salt)
            text = answer["choices"][0]["message"]["content"]
            extra = answer["droidspeak"]
            result = results[mode]
            result["ttft"].append(extra["ttft_ms"])
            result["answers"].append(text)
            result["f1"].append(max(f1(text, gold) for gold in row["answers"]))
            result["plans"].append((extra["plan"], extra["translated"]))
            if mode == "full":
                tokens.append(answer["usage"]["prompt_tokens"])
        print(f"\r  {i + 1} of {len(rows)} contexts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results, tokens


def summarize(results, tokens, family, sender, receiver):
    modes = {}
    for mode, result in results.items():
        modes[mode] = {"ttft_ms_median": round(statistics.median(result["ttft"]), 2), "ttft_ms_p95": round(percentile(result["ttft"], 0.95), 2),
                       "f1": round(100 * statistics.mean(result["f1"]), 2),
                       "agreement": round(statistics.mean(a == b for a, b in zip(result["answers"], results["full"]["answers"])), 4)}
    plan, translated = collections.Counter(results["droidspeak"]["plans"]).most_common(1)[0][0]
    modes["droidspeak"] |= {"plan": plan, "translated": translated}
    for mode in modes.values():
        mode["speedup"] = round(modes["full"]["ttft_ms_median"] / mode["ttft_ms_median"], 3)
    return {"family": family, "sender": sender, "receiver": receiver, "contexts": len(tokens), "context_tokens_median": int(statistics.median(tokens)), "modes": modes}


def print_table(summary):
    print(f"\n{summary['receiver']} answers on {summary['contexts']} contexts of about {summary['context_tokens_median']} tokens that {summary['sender']} has read:\n")
    print(f"{'':<14}{'TTFT median':>13}{'TTFT p95':>12}{'speed-up':>10}{'F1':>8}{'same answer':>13}  plan")
    for name, mode in summary["modes"].items():
        plan = mode.get("plan", name) + (", translated" if mode.get("translated") else "")
        print(f"{name:<14}{mode['ttft_ms_median']:>10.0f} ms{mode['ttft_ms_p95']:>9.0f} ms{mode['speedup']:>9.2f}x{mode['f1']:>8.1f}{100 * mode['agreement']:>12.0f}%  {plan}")


def bars(title, values, unit):
    """Horizontal bars as inline SVG."""
    top = max(values.values()) or 1
    rows = []
    for i, (name, value) in enumerate(values.items()):
        y = 14 + i * 34
        width = 420 * value / top
        rows.append(f'<text x="0" y="{y + 14}">{html.escape(name)}</text><rect x="110" y="{y}" width="{width:.1f}" height="20" rx="3"/>'
                    f'<text x="{118 + width:.1f}" y="{y + 14}">{value:.1f}{unit}</text>')
    return f'<h2>{html.escape(title)}</h2><svg viewBox="0 0 640 {20 + 34 * len(values)}" role="img" aria-label="{html.escape(title)}">{"".join(rows)}</svg>'


def write_report(summary, rows, results, plots, path):
    modes = summary["modes"]
    table = "".join(f"<tr><td>{n}</td><td>{m['ttft_ms_median']:.0f} ms</td><td>{m['ttft_ms_p95']:.0f} ms</td><td>{m['speedup']:.2f}x</td><td>{m['f1']:.1f}</td>"
                    f"<td>{100 * m['agreement']:.0f} %</td><td>{html.escape(m.get('plan', n))}</td></tr>" for n, m in modes.items())
    examples = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in (row["question"], row["answers"][0], *(results[m]["answers"][i] for m in MODES))) + "</tr>"
                       for i, row in enumerate(rows[:20]))
    drawings = "".join(f"<figure>{plot.read_text()}</figure>" for plot in plots)
    path.write_text(f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>DroidSpeak demo</title>
<style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
table{{border-collapse:collapse;width:100%;margin:1rem 0}}td,th{{border-bottom:1px solid #8884;padding:.3rem .6rem;text-align:left}}
svg{{max-width:100%;height:auto;font:13px system-ui,sans-serif;fill:currentColor}}rect{{fill:#3b82f6}}figure{{margin:1rem 0}}</style>
<h1>DroidSpeak demo</h1>
<p>{html.escape(summary['receiver'])} answers on {summary['contexts']} contexts of about {summary['context_tokens_median']} tokens that {html.escape(summary['sender'])} has read.</p>
<table><tr><th></th><th>TTFT median</th><th>TTFT p95</th><th>speed-up</th><th>F1</th><th>same answer as full</th><th>plan</th></tr>{table}</table>
{bars("Time to first token", {n: m["ttft_ms_median"] for n, m in modes.items()}, " ms")}
{bars("F1", {n: m["f1"] for n, m in modes.items()}, "")}
<h2>Answers</h2><table><tr><th>question</th><th>gold</th><th>full prefill</th><th>plain reuse</th><th>DroidSpeak</th></tr>{examples}</table>
<h2>The pair's plan book</h2>{drawings or "<p>none</p>"}</html>""", encoding="utf-8")


def argument_parser(description, name, contexts):
    """Options of a run in which one variant answers on what another has read; results go to out/NAME."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "droidspeak"))
    parser.add_argument("--family", default=str(ROOT / "models" / "smollm2" / "family.json"))
    parser.add_argument("--data", type=Path, default=ROOT / "tests" / "data" / "qa" / "qa.demo.jsonl.gz")
    parser.add_argument("--sender", default="base")
    parser.add_argument("--receiver", default="qa")
    parser.add_argument("--contexts", type=int, default=contexts)
    parser.add_argument("--min-quality", type=float, default=0.97, help="quality floor of the server")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / name)
    return parser


def main():
    args = argument_parser(__doc__, "demo", contexts=30).parse_args()
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    rows = load_rows(args.data, args.contexts)
    start = time.time()
    server = Server(args.binary, args.family, args.min_quality, out / "server.log")
    try:
        results, tokens = run(server, rows, args.sender, args.receiver)
    finally:
        server.stop()
    summary = summarize(results, tokens, json.loads(Path(args.family).read_text())["name"], args.sender, args.receiver)
    print_table(summary)
    (out / "result.json").write_text(json.dumps(summary, indent=2) + "\n")
    plots = sorted((ROOT / "families" / "smollm2" / "plans").glob(f"{args.receiver}-from-{args.sender}.*.svg"))
    write_report(summary, rows, results, plots, out / "report.html")
    shown = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    print(f"\n{shown}/result.json, {shown}/report.html   ({time.time() - start:.0f} s)")


if __name__ == "__main__":
    main()

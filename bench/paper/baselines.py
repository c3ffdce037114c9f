#!/usr/bin/env python3
"""DroidSpeak's contiguous block against other ways to spend the same recomputation, in PyTorch.

Arms, each against the receiver's own full prefill on the same rows: full, plain reuse, a contiguous block (raw, and
translated where the plan book has maps), as many layers chosen one by one by sensitivity ("critical", with the
sender's layer input loaded at every transition), and CacheBlend's token selection with the same share of tokens as the
block has of layers, without and with its gradual filtering. Needs torch, tokenizers, safetensors and numpy.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import arms
import torch
from answers import AnswerLimits, Question, Series, padded
from arms import Arm, ContextBatch, Mixed
from family import Family
from intervals import difference, mean_interval
from prompts import Prompt, make_prompts
from variants.llama import Runner

EXAMPLE = """example:
  baselines.py --family models/smollm2/family.json --sender base --receiver qa --data hotpotqa.test.jsonl.gz \\
    --profile-data hotpotqa.profile.jsonl.gz --limit 300 --json baselines.json
"""


class Pair:
    def __init__(self, options):
        self.device = torch.device(options.device)
        compute = {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype]
        self.options = options
        self.family = Family(options.family, self.device, compute)
        self.sender = Runner(self.family.variant(options.sender))
        self.receiver = Runner(self.family.variant(options.receiver))
        self.maps = self.family.maps(options.sender, options.receiver)
        tokenizer = self.family.base.tokenizer
        ends = [self.family.base.end_token, tokenizer.token_to_id("<|endoftext|>")]
        self.limits = AnswerLimits(options.max_tokens, ends)

    @property
    def layers(self) -> int:
        return self.receiver.shape.layers

    def prompts(self, path: Path, limit: int) -> list[Prompt]:
        longest = self.receiver.shape.context - self.options.max_tokens
        return make_prompts(self.family.base.tokenizer, path, limit, longest)

    def batches(self, prompts: list[Prompt], transitions: set[int]):
        """Yields (places in `prompts`, Question); contexts of similar length together."""
        order = sorted(range(len(prompts)), key=lambda i: -prompts[i].shared)
        while order:
            room = prompts[order[0]].shared + max(len(prompts[i].suffix) for i in order) + self.options.max_tokens
            count = max(1, self.options.batch_tokens // room)
            places, order = order[:count], order[count:]
            chosen = [prompts[i] for i in places]
            ids, lengths = padded([p.context for p in chosen], self.device)
            context = ContextBatch(self.sender, self.receiver, ids, lengths, room, transitions)
            yield places, Question(context, chosen, self.family.base.tokenizer, self.limits)


def sensitivities(pair: Pair, prompts: list[Prompt]) -> torch.Tensor:
    """KL [layers, prompts] when one layer alone is the sender's."""
    found = torch.zeros(pair.layers, len(prompts))
    for places, question in pair.batches(prompts, set()):
        batch = question.batch
        cache = Mixed.copy_of(batch.own)
        for layer in range(pair.layers):
            cache.keys[layer], cache.values[layer] = batch.sent.keys[layer], batch.sent.values[layer]
            found[layer, places] = question.divergence(cache).kl.cpu()
            cache.keys[layer], cache.values[layer] = batch.own.keys[layer], batch.own.values[layer]
    return found


def make_arms(pair: Pair, blocks: list[tuple[int, int]], order: list[int]) -> dict[str, tuple[Arm, dict]]:
    """Arms by name, with what they recompute and load."""
    made = {"full": (arms.full, {"layers": pair.layers}), "reuse": (arms.reuse, {"layers": 0, "transitions": 0})}
    for first, last in blocks:
        count, block = last - first, list(range(first, last))
        critical = sorted(order[:count])
        facts = {"layers": count, "recomputed": block, "transitions": 1}
        made[f"contiguous {count}"] = (arms.recompute_layers(block), facts)
        if pair.maps is not None and pair.maps.has_input(first):
            made[f"translated {count}"] = (arms.recompute_translated(block, pair.maps), facts)
        made[f"critical {count}"] = (arms.recompute_layers(critical), {
            "layers": count, "recomputed": critical, "transitions": len(arms.runs_of(critical))})
        share = count / pair.layers
        made[f"tokens {count}"] = (arms.recompute_tokens(share), {"layers": count, "token_share": round(share, 4)})
        made[f"filtered {count}"] = (arms.recompute_filtered_tokens(share), {"layers": count, "token_share": round(share, 4)})
    return made


def measure(pair: Pair, prompts: list[Prompt], chosen: dict[str, tuple[Arm, dict]], say) -> dict[str, Series]:
    """Values of every arm, in the order of the prompts."""
    transitions = {first for _, facts in chosen.values() for first, _ in arms.runs_of(facts.get("recomputed", []))}
    found, places_seen = {name: Series() for name in chosen}, []
    for places, question in pair.batches(prompts, transitions):
        for name, (arm, _) in chosen.items():
            found[name].extend(question.measure(arm))
        places_seen += places
        say(f"{len(places_seen)} of {len(prompts)} rows")
    back = sorted(range(len(places_seen)), key=places_seen.__getitem__)
    return {name: Series(*([values[i] for i in back] for values in (s.kl, s.agreement, s.f1))) for name, s in found.items()}


def report_arm(name: str, facts: dict, series: Series, full: Series) -> dict:
    average = lambda values: round(sum(values) / len(values), 5)
    return {"arm": name, **facts, "kl": average(series.kl), "kl_ci95": mean_interval(series.kl),
            "agreement": average(series.agreement), "f1": average(series.f1), "f1_ci95": mean_interval(series.f1),
            "f1_difference": difference(series.f1, full.f1),
            "rows": {"kl": [round(v, 5) for v in series.kl], "f1": [round(v, 4) for v in series.f1]}}


def compare(found: dict[str, Series], blocks: list[tuple[int, int]]) -> list[dict]:
    """Contiguous minus the others at the same budget: negative KL and positive F1 speak for the block."""
    made = []
    for first, last in blocks:
        block = found[f"contiguous {last - first}"]
        for kind in ("critical", "tokens", "filtered", "translated"):
            if (other := found.get(f"{kind} {last - first}")) is not None:
                made.append({"first": f"contiguous {last - first}", "second": f"{kind} {last - first}",
                             "kl": difference(block.kl, other.kl), "f1": difference(block.f1, other.f1)})
    return made


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--family", type=Path, default=Path("models/smollm2/family.json"))
    parser.add_argument("--sender", required=True)
    parser.add_argument("--receiver", required=True)
    parser.add_argument("--data", type=Path, required=True, help="rows that are measured")
    parser.add_argument("--profile-data", type=Path, help="rows that sensitivity is measured on; needed with blocks")
    parser.add_argument("--profile-limit", type=int, default=50)
    parser.add_argument("--limit", type=int, default=0, help="rows at most (0: all)")
    parser.add_argument("--blocks", default="18-24,16-24,12-24", help="contiguous blocks, half-open; each sets a budget")
    parser.add_argument("--max-tokens", type=int, default=32, help="longest answer")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--dtype", choices=["bf16", "f32"], default="bf16" if cuda else "f32")
    parser.add_argument("--batch-tokens", type=int, default=100_000 if cuda else 4_000, help="cache slots of a batch")
    parser.add_argument("--json", type=Path, help="where the report goes; standard output without")
    options = parser.parse_args(arguments)
    options.blocks = [tuple(map(int, block.split("-"))) for block in options.blocks.split(",") if block]
    if options.blocks and options.profile_data is None:
        parser.error("--profile-data: needed to choose critical layers")
    return options


def main() -> None:
    options = parse()
    begin = time.time()
    say = lambda text: print(f"[{time.time() - begin:5.0f} s] {options.receiver} from {options.sender}: {text}",
                             flush=True, file=sys.stderr)
    torch.backends.cuda.matmul.allow_tf32 = True
    pair = Pair(options)
    say("models loaded")
    found = sensitivities(pair, pair.prompts(options.profile_data, options.profile_limit))
    order = found.mean(1).argsort(descending=True).tolist()
    say(f"layers by sensitivity: {order}")
    chosen = make_arms(pair, options.blocks, order)
    prompts = pair.prompts(options.data, options.limit)
    series = measure(pair, prompts, chosen, say)
    report = {
        "sender": options.sender, "receiver": options.receiver, "data": options.data.name, "n": len(prompts),
        "device": str(pair.device), "dtype": options.dtype,
        "context_tokens_median": sorted(p.shared for p in prompts)[len(prompts) // 2],
        "sensitivity": [{"layer": i, "kl": round(float(row.mean()), 6), "rows": [round(v, 6) for v in row.tolist()]}
                        for i, row in enumerate(found)],
        "arms": [report_arm(name, facts, series[name], series["full"]) for name, (_, facts) in chosen.items()],
        "comparisons": compare(series, options.blocks), "seconds": round(time.time() - begin, 1)}
    text = json.dumps(report, indent=1) + "\n"
    if options.json is None:
        print(text, end="")
    else:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text)
    for arm in report["arms"]:
        say(f"{arm['arm']:>14}: KL {arm['kl']:.4f}  agreement {arm['agreement']:.3f}  F1 {100 * arm['f1']:.1f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How finely each channel of K and V should be coded: finer where answers hang on it. Writes the "codec_steps" of a family.

    python3 tools/measure_codec_steps.py --family models/smollm2/family.json --out families/smollm2/codec_steps.json \\
      --rows tests/data/qa/qa.demo.jsonl.gz tests/data/qa/hotpotqa.profile.jsonl.gz --own base,qa,math,entities \\
      --shared base:qa,math:qa,entities:qa --plan 0,16,24

An error of the codec is as good as random, so what it costs is the sum over channels of its square times the channel's part of the
Fisher information: the mean square of d log p(y) / d value over tokens y that a model draws after its answers. That is measured for
each use of a cache: --own models read what they wrote, --shared receivers read what a sender wrote by --plan, through the maps of
their plan book. Own uses together count as much as shared ones. At a given size steps should then go with it to the power of -1/2;
part of the way there is what few rows allow, so of several powers the one is taken whose coded values change answers least on rows
that were not measured (the last --check). The size stays what it is with the same steps everywhere: entropy of the symbols of these
rows. See docs/decisions/009-kv-codec.md. Rows of other questions than are judged. Needs torch, numpy, safetensors and tokenizers."""

import argparse
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from variants.adapter import load_adapter
from variants.base import load_base
from variants.layout import read_qa
from variants.llama import Cache, Llama, Runner, finish, project, rotate

BLOCK, EXACT, LEARNED = 64, 4, 256  # src/codec: tokens of a block, tokens that stay exact, tokens that tables are learned from
STEP = 0.46
KINDS, NARROWEST, MOST_SYMBOL, ESCAPE_BITS = 16, 0.25, 126, 64  # src/codec: distributions, spread of the first, symbols of the last
EIGHTHS = 40  # five octaves, the most that a file may say
COARSEST, SPREAD = 3.0, 24.0  # deviations of a layer that a step may be; steps that a channel's deviation may be


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", type=Path, required=True, help="family.json of a GGUF base, adapters and plan books with maps")
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="in the QA shape, .jsonl.gz; taken in turns")
    parser.add_argument("--own", default="base", help="models that read their own caches")
    parser.add_argument("--shared", default="", help="sender:receiver,...")
    parser.add_argument("--plan", default="0,16,24", help="of those, 0,b,c, translated")
    parser.add_argument("--count", type=int, default=40, help="rows that are measured")
    parser.add_argument("--check", type=int, default=12, help="rows behind them by which the power is chosen")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--draws", type=int, default=2, help="for each row")
    parser.add_argument("--powers", default="0.25,0.3,0.35,0.4,0.45")
    parser.add_argument("--seconds", type=float, default=3600, help="rows that are not measured by then are left out")
    parser.add_argument("--threads", type=int, help="of the CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def channels_of(heads):
    """[layers, heads, tokens, head width] -> [layers, tokens, channels]"""
    layers, _, tokens, _ = heads.shape
    return heads.transpose(1, 2).reshape(layers, tokens, -1)


class Reading:
    """What one model made of one row: K before RoPE and V of its whole blocks [layers, 2, tokens, channels], its answer, inputs of layers."""

    def __init__(self, runner, ids, context, limit, end, wanted):
        cache = Cache(runner.model, 1, len(ids) + limit, ids.device)
        hidden, inputs = runner.prefill(ids[None], cache, wanted)
        answer = runner.decode(hidden[:, -1], torch.tensor([len(ids)], device=ids.device), cache, limit, end)[0] + [end]
        cosine, sine = runner.model.rope(torch.arange(context, device=ids.device))
        keys, values = (part[:, 0, :, :context] for part in (cache.keys, cache.values))
        self.plain = torch.stack([channels_of(rotate(keys, cosine, -sine)), channels_of(values)], 1)
        self.answer = torch.tensor(answer[:limit], device=ids.device)
        self.inputs = {layer: hidden[:, :context] for layer, hidden in inputs.items()}


class Row:
    """One row, read by each model once."""

    def __init__(self, base, readers, text, options, wanted):
        encode = lambda part: base.tokenizer.encode(part, add_special_tokens=False).ids
        self.ids = torch.tensor(encode(text.prompt), device=options.device)
        self.tokens = len(encode(text.context)) // BLOCK * BLOCK
        self.readings = {name: Reading(runner, self.ids, self.tokens, options.tokens, base.end_token, wanted)
                         for name, runner in readers.items()}
        self.uncoded = {}  # scores of uses

    def scores(self, runner, answer, plain):
        """Log-probabilities at the answer's tokens, from K/V of the context [layers][2, tokens, channels]."""
        model, shape = runner.model, runner.shape
        rest = torch.cat([self.ids[self.tokens:], answer[:-1]])
        positions = self.tokens + torch.arange(len(rest), device=rest.device)
        cosine, sine = model.rope(positions)
        before = model.rope(torch.arange(self.tokens, device=rest.device))
        visible = torch.arange(self.tokens + len(rest), device=rest.device) <= positions[:, None]
        hidden = F.embedding(rest[None], model.embedding)
        for weights, (keys, values) in zip(runner.weights, plain, strict=True):
            keys, values = (part.reshape(self.tokens, shape.kv_heads, -1).transpose(0, 1)[None] for part in (keys, values))
            query, key, value = project(hidden, cosine, sine, weights, shape)
            key, value = torch.cat([rotate(keys, *before), key], 2), torch.cat([values, value], 2)
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
            hidden = finish(hidden, attended, weights, shape)
        return model.logits(hidden[0, -len(answer):]).log_softmax(-1)


class OwnUse:
    def __init__(self, name, readers):
        self.name, self.sender, self.runner = name, name, readers[name]

    def scores(self, row, plain):
        return row.scores(self.runner, row.readings[self.sender].answer, plain)


class Family:
    def __init__(self, path):
        described = json.loads(path.read_text())
        self.base_name, self.gguf = described["base"]["name"], path.parent / described["base"]["path"]
        self.adapters = {variant["name"]: path.parent / variant["adapter"] for variant in described["variants"]}
        self.books = [path.parent / book for book in described["plan_books"]]

    def maps(self, sender, receiver):
        for path in self.books:
            book = json.loads(path.read_text())
            if (book["sender"]["name"], book["receiver"]["name"]) == (sender, receiver):
                return load_file(path.parent / book["maps"])
        sys.exit(f"{receiver} from {sender}: no plan book")

    def readers(self, base, names, device):
        readers = {}
        for name in names:
            model = Llama(base)
            if name != self.base_name:
                model.lora = load_adapter(base, self.adapters[name])
            readers[name] = Runner(model.to(device).requires_grad_(False))
        return readers


class SharedUse:
    """A receiver reads a sender's cache by a plan 0,b,c: layers b to c are its own, from the sender's translated input of b."""

    def __init__(self, pair, readers, family, options):
        self.name = pair
        self.sender, self.receiver = pair.split(":")
        self.runner = readers[self.receiver]
        _, self.first, self.last = map(int, options.plan.split(","))
        self.maps = {name: tensor.float().to(options.device) for name, tensor in family.maps(self.sender, self.receiver).items()}

    def translated(self, name, values):
        down, up, bias = (self.maps[f"{name}.{part}"] for part in ("down", "up", "bias"))
        return values + F.linear(F.linear(values, down), up) + bias

    @torch.no_grad()
    def recomputed(self, row):
        hidden = self.translated(f"input.{self.first}", row.readings[self.sender].inputs[self.first])
        cache = Cache(self.runner.model, 1, row.tokens, hidden.device)
        self.runner.run_layers(hidden, cache, self.first, self.last)
        cosine, sine = self.runner.model.rope(torch.arange(row.tokens, device=hidden.device))
        layers = slice(self.first, self.last)
        return torch.stack([channels_of(rotate(cache.keys[layers, 0], cosine, -sine)), channels_of(cache.values[layers, 0])], 1)

    def scores(self, row, plain):
        own, mixed = self.recomputed(row), []
        for layer, (keys, values) in enumerate(plain):
            if self.first <= layer < self.last:
                mixed.append(own[layer - self.first])
            else:
                mixed.append(self.translated(f"kv.{layer}", torch.cat([keys, values], -1)).chunk(2, -1))
        return row.scores(self.runner, row.readings[self.receiver].answer, mixed)


class Tables:
    """What the codec learns of a sample [layers, 2, tokens, channels], and the bits that symbols of values take with given steps."""

    def __init__(self, sample):
        self.means, self.deviations = sample.mean(2), sample.var(2, unbiased=False).sqrt()
        self.typical = self.deviations.square().mean(-1, keepdim=True).sqrt().expand_as(self.deviations)

    def scales(self, values, steps):
        """Of K 1, of V by half octaves of the token's size: [layers, 2, tokens, 1]."""
        usual = (self.deviations / steps).square().mean(-1).sqrt()[:, :, None, None]
        size = ((values - self.means[:, :, None]) / steps[:, :, None]).square().mean(-1, keepdim=True).sqrt() / usual
        scales = torch.exp2(torch.clamp(torch.round(2 * torch.log2(size.clamp(min=1e-9))), -8, 7) / 2)
        scales[:, 0] = 1
        return scales

    def symbols(self, values, steps):
        """And how much one of them is."""
        sizes = steps[:, :, None] * self.scales(values, steps)
        return torch.round((values - self.means[:, :, None]) / sizes), sizes

    def coded(self, values, steps):
        symbols, sizes = self.symbols(values, steps)
        decoded = self.means[:, :, None] + symbols * sizes
        return torch.cat([values[:, :, :EXACT], decoded[:, :, EXACT:]], 2)

    def bits(self, samples, steps):
        """A value, with the codec's kinds of distributions, half an octave of spread each, and what is written out."""
        spread = (self.deviations / steps).clamp(min=NARROWEST)
        kinds = torch.clamp(1 + torch.round(2 * torch.log2(spread / NARROWEST)), 1, KINDS - 1).long()
        counts, escape = 0, MOST_SYMBOL + 1
        for values in samples:
            symbols = self.symbols(values, steps)[0].long()
            symbols = torch.where(symbols.abs() > MOST_SYMBOL, escape, symbols)
            counts = counts + torch.bincount((kinds[:, :, None] * 256 + symbols + MOST_SYMBOL).flatten(), minlength=KINDS * 256)
        counts = counts.view(KINDS, 256).double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        entropy = -(counts * torch.where(shares > 0, shares.log2(), 0 * shares)).sum()
        return float((entropy + ESCAPE_BITS * counts[:, escape + MOST_SYMBOL].sum()) / counts.sum())


def information(use, row, tables, draws):
    """Of each channel [layers, 2, channels], of one answer's token; V's in steps that grow with its token."""
    plain = row.readings[use.sender].plain.clone().requires_grad_()
    scores = use.scores(row, plain)
    scales = tables.scales(plain.detach()[:, :, EXACT:], STEP * tables.typical)
    total = 0
    for draw in range(draws):
        drawn = torch.multinomial(scores.detach().exp(), 1)[:, 0]
        signs = torch.randint(0, 2, drawn.shape, device=drawn.device) * 2 - 1  # so that tokens do not mix
        loss = (scores.gather(1, drawn[:, None])[:, 0] * signs).sum()
        slopes, = torch.autograd.grad(loss, plain, retain_graph=draw + 1 < draws)
        total = total + (slopes[:, :, EXACT:] * scales).square().sum(2)
    return total / draws / len(drawn)


def steps_of(tables, samples, found, power):
    """In deviations of the layer, at the size that STEP everywhere has."""
    steps = (found * tables.typical.square()).clamp(min=1e-30) ** -power
    steps = steps / torch.exp(torch.log(steps).mean())
    finest = tables.deviations / tables.typical / SPREAD
    bounded = lambda factor: torch.maximum((STEP * factor * steps).clamp(max=COARSEST), finest)
    wanted, low, high = tables.bits(samples, STEP * tables.typical), 0.1, 10.0
    for _ in range(16):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tables.bits(samples, bounded(middle) * tables.typical) > wanted else (low, middle)
    return rounded(bounded(high))


def rounded(steps):
    return STEP * torch.exp2(eighths_of(steps) / 8)


def eighths_of(steps):
    return torch.round(8 * torch.log2(steps / STEP)).clamp(-EIGHTHS, EIGHTHS)


@torch.no_grad()
def loss_of(use, rows, tables, steps):
    """KL of the use's answers from what they are without the codec: mean over rows."""
    total = 0
    for row in rows:
        plain = row.readings[use.sender].plain
        if use.name not in row.uncoded:
            row.uncoded[use.name] = use.scores(row, plain)
        before, after = row.uncoded[use.name], use.scores(row, tables.coded(plain, steps * tables.typical))
        total += float((before.exp() * (before - after)).sum(-1).mean())
    return total / len(rows)


def texts_of(base, options):
    """Long enough ones, of the files in turns."""
    parts = [read_qa(path.parent, path.name.removesuffix(".jsonl.gz")) for path in options.rows]
    turns = [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]
    return [text for text in turns if len(base.tokenizer.encode(text.context, add_special_tokens=False).ids) >= LEARNED]


def main():
    options = parse()
    until = time.monotonic() + options.seconds
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    family = Family(options.family)
    base = load_base(family.gguf)
    pairs = [pair for pair in options.shared.split(",") if pair]
    names = dict.fromkeys(options.own.split(",") + [name for pair in pairs for name in pair.split(":")])
    readers = family.readers(base, names, options.device)
    uses = [OwnUse(name, readers) for name in options.own.split(",")] + [SharedUse(pair, readers, family, options) for pair in pairs]
    texts = texts_of(base, options)[:options.count + options.check]
    make = lambda text: Row(base, readers, text, options, {use.first for use in uses if isinstance(use, SharedUse)})
    checked = [make(text) for text in texts[-options.check:]]
    tables = Tables(checked[0].readings[uses[0].sender].plain[:, :, EXACT:LEARNED])
    found, num_rows = {}, 0
    for text in texts[:-options.check]:
        if time.monotonic() > until:
            break
        row, num_rows = make(text), num_rows + 1
        for use in uses:
            found[use.name] = found.get(use.name, 0) + information(use, row, tables, options.draws)
    print(f"{num_rows} rows measured, {len(checked)} to choose by", flush=True)
    total = 0
    for kind in (OwnUse, SharedUse):
        of_kind = sum(found[use.name] for use in uses if isinstance(use, kind))
        if isinstance(of_kind, torch.Tensor):
            total = total + of_kind / (of_kind * tables.typical.square()).sum()
    samples = [row.readings[name].plain[:, :, EXACT:] for row in checked[:2] for name in {use.sender: use for use in uses}]
    tried = {}
    for power in [0.0] + [float(text) for text in options.powers.split(",")]:
        steps = steps_of(tables, samples, total, power) if power > 0 else torch.full_like(total, STEP)
        losses = [loss_of(use, checked, tables, steps) for use in uses]
        tried[sum(losses)] = steps
        shown = ", ".join(f"{use.name} {loss:.5f}" for use, loss in zip(uses, losses))
        print(f"power {power}: {tables.bits(samples, steps * tables.typical):.3f} bits a value, KL {shown}", flush=True)
    eighths = eighths_of(tried[min(tried)]).int().tolist()
    lines = [f'  {{"keys": {json.dumps(keys)},\n   "values": {json.dumps(values)}}}' for keys, values in eighths]
    options.out.write_text('{"layers": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()

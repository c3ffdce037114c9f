#!/usr/bin/env python3
"""How finely each channel of K and V should be coded: finer where answers hang on it. Writes the "codec_steps" of a family.

    python3 tools/measure_codec_steps.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out families/smollm2/codec_steps.json \\
      --rows base=qa.fit.jsonl.gz --rows families/smollm2/qa=qa.fit.jsonl.gz --rows families/smollm2/math=math.profile.jsonl.gz

An error of the codec is as good as random, so what it costs is the sum over channels of its square times the channel's part of
the Fisher information: the mean square of d log p(y) / d value over tokens y that the model itself draws after its answers, each
model reading its own cache. At a given size steps should then go with that to the power of -1/2; part of the way there is what few
rows allow, so of several powers the one is taken whose coded values change answers least on rows that were not measured. The size
stays what it is with the same steps everywhere: entropy of the symbols of these rows. See docs/decisions/009-kv-codec.md. Rows of
other questions than are judged: train_variants.py rows qa fit, rows math profile. Needs torch, numpy, safetensors and tokenizers; 100 rows take half a minute on a GPU."""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.nn.functional as F

from variants.adapter import load_adapter
from variants.base import load_base
from variants.layout import read_qa
from variants.llama import Cache, Llama, Runner, finish, project, rotate

BLOCK, EXACT, LEARNED = 64, 4, 256  # src/codec: tokens of a block, tokens that stay exact, tokens that tables are learned from
STEP = 0.46
KINDS = 16  # of distributions
EIGHTHS = 40  # five octaves, the most that a file may say
COARSEST = 3.0  # deviations of a layer
SPREAD = 9.0  # steps of a channel's deviation, at most: what lies beyond 15 steps is written out, in 64 bits
MOST_SYMBOL, ESCAPE_BITS = 15, 64


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--rows", action="append", required=True, metavar="MODEL=FILE",
                        help="of one model, base or an adapter's folder: rows in the QA shape, .jsonl.gz; of several each counts as much")
    parser.add_argument("--count", type=int, default=100, help="rows of each model that are measured")
    parser.add_argument("--check", type=int, default=20, help="rows behind them by which the power is chosen")
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--draws", type=int, default=4, help="for each row")
    parser.add_argument("--powers", default="0.15,0.2,0.25,0.3,0.35,0.4,0.5")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


class Sample:
    """One row: K before RoPE and V of its whole blocks [layers, 2, tokens, channels], and what follows them."""

    def __init__(self, model, runner, ids, context, limit, end):
        self.ids, self.tokens = ids, context // BLOCK * BLOCK
        cache = Cache(model, 1, len(ids) + limit, ids.device)
        hidden, _ = runner.prefill(ids[None], cache)
        lengths = torch.tensor([len(ids)], device=ids.device)
        answer = runner.decode(hidden[:, -1], lengths, cache, limit, end)[0] + [end]
        self.answer = torch.tensor(answer[:limit], device=ids.device)
        self.keys, self.values = (part[:, 0, :, :self.tokens].clone() for part in (cache.keys, cache.values))
        self.turn = model.rope(torch.arange(self.tokens, device=ids.device))
        self.plain = torch.stack([channels_of(self.turned_back(self.keys)), channels_of(self.values)], 1)

    def turned(self, keys):
        return rotate(keys, *self.turn)

    def turned_back(self, keys):
        cosine, sine = self.turn
        return rotate(keys, cosine, -sine)


def channels_of(heads):
    """[layers, heads, tokens, head width] -> [layers, tokens, channels]"""
    layers, _, tokens, _ = heads.shape
    return heads.transpose(1, 2).reshape(layers, tokens, -1)


def heads_of(channels, like):
    """[layers, tokens, channels] -> [layers, heads, tokens, head width]"""
    layers, heads, tokens, width = like.shape
    return channels.reshape(layers, tokens, heads, width).transpose(1, 2)


def answer_logits(model, weights, sample, keys, values):
    """Logits at the answer's tokens, from K/V of the context."""
    rest = torch.cat([sample.ids[sample.tokens:], sample.answer[:-1]])
    positions = sample.tokens + torch.arange(len(rest), device=rest.device)
    cosine, sine = model.rope(positions)
    visible = torch.arange(sample.tokens + len(rest), device=rest.device) <= positions[:, None]
    hidden = F.embedding(rest[None], model.embedding)
    for i, layer in enumerate(weights):
        query, key, value = project(hidden, cosine, sine, layer, model.shape)
        key, value = torch.cat([keys[i][None], key], 2), torch.cat([values[i][None], value], 2)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
        hidden = finish(hidden, attended, layer, model.shape)
    return model.logits(hidden[0, -len(sample.answer):])


def information(model, weights, sample, tables, draws):
    """Of each channel [layers, 2, channels], of one answer's token; V's in steps that grow with its token."""
    keys, values = sample.keys.clone().requires_grad_(), sample.values.clone().requires_grad_()
    scores = answer_logits(model, weights, sample, keys, values).log_softmax(-1)
    scales = tables.scales(sample.plain[:, :, EXACT:])
    total = 0
    for draw in range(draws):
        drawn = torch.multinomial(scores.detach().exp(), 1)[:, 0]
        signs = torch.randint(0, 2, drawn.shape, device=drawn.device) * 2 - 1  # so that tokens do not mix
        loss = (scores.gather(1, drawn[:, None])[:, 0] * signs).sum()
        of_keys, of_values = torch.autograd.grad(loss, (keys, values), retain_graph=draw + 1 < draws)
        slopes = torch.stack([channels_of(sample.turned_back(of_keys)), channels_of(of_values)], 1)[:, :, EXACT:]
        total = total + (slopes * scales).square().sum(2)
    return total / draws / len(drawn)


class Tables:
    """What the codec learns of a sample [layers, 2, tokens, channels], and the bits that symbols of values take with given steps."""

    def __init__(self, sample):
        self.means, self.deviations = sample.mean(2), sample.var(2, unbiased=False).sqrt()
        self.typical = self.deviations.square().mean(-1, keepdim=True).sqrt().expand_as(self.deviations)

    def scales(self, values, steps=None):
        """Of K 1, of V by half octaves of the token's size: [layers, 2, tokens, 1]."""
        steps = STEP * self.typical if steps is None else steps
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
        spread = (self.deviations / steps).clamp(min=0.125)
        kinds = torch.clamp(1 + torch.round(2 * torch.log2(spread / 0.125)), 1, KINDS - 1).long()
        counts, escape = 0, MOST_SYMBOL + 1
        for values in samples:
            symbols = self.symbols(values, steps)[0].long()
            symbols = torch.where(symbols.abs() > MOST_SYMBOL, escape, symbols)
            counts = counts + torch.bincount((kinds[:, :, None] * 32 + symbols + MOST_SYMBOL).flatten(), minlength=KINDS * 32)
        counts = counts.view(KINDS, 32).double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        entropy = -(counts * torch.where(shares > 0, shares.log2(), 0 * shares)).sum()
        return float((entropy + ESCAPE_BITS * counts[:, escape + MOST_SYMBOL].sum()) / counts.sum())


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
def loss_of(reader, tables, steps):
    """KL of a model's answers on its own cache, coded: mean over rows."""
    total = 0
    for sample in reader.checked:
        coded = tables.coded(sample.plain, steps * tables.typical)
        keys, values = sample.turned(heads_of(coded[:, 0], sample.keys)), heads_of(coded[:, 1], sample.values)
        before = answer_logits(reader.model, reader.runner.weights, sample, sample.keys, sample.values).log_softmax(-1)
        after = answer_logits(reader.model, reader.runner.weights, sample, keys, values).log_softmax(-1)
        total += float((before.exp() * (before - after)).sum(-1).mean())
    return total / len(reader.checked)


class Reader:
    """One model, and its rows."""

    def __init__(self, base, name, path, options):
        self.name, self.model = name, Llama(base)
        if name != "base":
            self.model.lora = load_adapter(base, Path(name))
        self.model = self.model.to(options.device).requires_grad_(False)
        self.runner = Runner(self.model)
        rows = read_qa(path.parent, path.name.removesuffix(".jsonl.gz"))[:options.count + options.check]
        make = lambda row: Sample(self.model, self.runner, torch.tensor(encode(base, row.prompt), device=options.device),
                                  len(encode(base, row.context)), options.tokens, base.end_token)
        long = [row for row in rows if len(encode(base, row.context)) >= LEARNED]
        self.measured, self.checked = map(make, long[:-options.check]), [make(row) for row in long[-options.check:]]
        if len(long) <= options.check:
            sys.exit(f"{path}: {len(long)} rows of {LEARNED} tokens and more, more than {options.check} are needed")


def encode(base, text):
    return base.tokenizer.encode(text, add_special_tokens=False).ids


def main():
    options = parse()
    torch.manual_seed(1)
    base = load_base(options.gguf)
    tables, found, readers = None, 0, []
    for name, path in (text.split("=", 1) for text in options.rows):
        reader = Reader(base, name, Path(path), options)
        tables = tables or Tables(reader.checked[0].plain[:, :, EXACT:LEARNED])
        of_rows = [information(reader.model, reader.runner.weights, sample, tables, options.draws) for sample in reader.measured]
        found = found + sum(of_rows) / len(of_rows)
        print(f"{name}: {len(of_rows)} rows measured, {len(reader.checked)} to choose by", flush=True)
        readers.append(reader)
    samples = [sample.plain[:, :, EXACT:] for reader in readers for sample in reader.checked[:4]]
    alike = torch.full_like(found, STEP)
    tried = {}
    for power in [0.0] + [float(text) for text in options.powers.split(",")]:
        steps = steps_of(tables, samples, found, power) if power > 0 else alike
        losses = [loss_of(reader, tables, steps) for reader in readers]
        tried[sum(losses)] = steps
        shown = ", ".join(f"{Path(reader.name).name} {loss:.5f}" for reader, loss in zip(readers, losses))
        print(f"power {power}: {tables.bits(samples, steps * tables.typical):.3f} bits a value, KL {shown}", flush=True)
    eighths = eighths_of(tried[min(tried)]).int().tolist()
    lines = [f'  {{"keys": {json.dumps(keys)},\n   "values": {json.dumps(values)}}}' for keys, values in eighths]
    options.out.write_text('{"layers": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()

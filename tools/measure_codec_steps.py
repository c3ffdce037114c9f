#!/usr/bin/env python3
"""How finely each channel of K and V should be coded: finer where answers hang on it. Writes the "codec_steps" of a family.

    python3 tools/measure_codec_steps.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --data tests/data/qa/qa.demo.jsonl.gz --out families/smollm2/codec_steps.json

An error of the codec is as good as random, so what it costs is the sum over channels of its square times the channel's part of
the Fisher information: the mean square of d log p(y) / d value over tokens y that the model itself draws after its answers. At a
given size steps should then go with that to the power of -1/2; half of the way there (-1/4) is what few rows allow. The size stays
what it is with the same steps everywhere: entropy of the symbols of the tables' own sample, the first four blocks. See
docs/decisions/009-kv-codec.md. Needs torch, numpy and tokenizers; half a minute on a GPU."""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.nn.functional as F

from variants.base import load_base
from variants.layout import read_qa
from variants.llama import Cache, Llama, Runner, finish, project, rotate

BLOCK, EXACT, LEARNED = 64, 4, 256  # src/codec: tokens of a block, tokens that stay exact, tokens that tables are learned from
STEP = 0.46
KINDS = 16  # of distributions
EIGHTHS = 40  # five octaves, the most that a file may say
COARSEST, FINEST = 3.0, 0.05  # deviations of a layer


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="rows in the QA shape, .jsonl.gz")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=8, help="of each answer")
    parser.add_argument("--draws", type=int, default=4, help="for each row")
    parser.add_argument("--power", type=float, default=0.25)
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

    def turned_back(self, keys):
        cosine, sine = self.turn
        return rotate(keys, cosine, -sine)


def channels_of(heads):
    """[layers, heads, tokens, head width] -> [layers, tokens, channels]"""
    layers, _, tokens, _ = heads.shape
    return heads.transpose(1, 2).reshape(layers, tokens, -1)


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
    """What the codec learns of a sample [layers, 2, tokens, channels], and the bits that its symbols take with given steps."""

    def __init__(self, sample):
        self.sample = sample
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

    def bits(self, steps):
        """A value, with the codec's kinds of distributions: half an octave of spread each."""
        symbols = torch.round((self.sample - self.means[:, :, None]) / (steps[:, :, None] * self.scales(self.sample, steps))).clamp(-31, 31)
        spread = (self.deviations / steps).clamp(min=0.125)
        kinds = torch.clamp(1 + torch.round(2 * torch.log2(spread / 0.125)), 1, KINDS - 1).long()
        counts = torch.bincount((kinds[:, :, None] * 64 + symbols.long() + 31).flatten(), minlength=KINDS * 64).view(KINDS, 64).double()
        shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
        return float(-(counts * torch.where(shares > 0, shares.log2(), 0 * shares)).sum() / counts.sum())


def steps_of(tables, found, power):
    """In deviations of the layer, at the size that STEP everywhere has."""
    steps = (found * tables.typical.square()).clamp(min=1e-30) ** -power
    steps = steps / torch.exp(torch.log(steps).mean())
    bounded = lambda factor: (STEP * factor * steps).clamp(FINEST, COARSEST)
    wanted, low, high = tables.bits(STEP * tables.typical), 0.1, 10.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tables.bits(bounded(middle) * tables.typical) > wanted else (low, middle)
    return bounded(math.sqrt(low * high))


def main():
    options = parse()
    torch.manual_seed(1)
    base = load_base(options.gguf)
    model = Llama(base).to(options.device)
    runner = Runner(model)
    examples = read_qa(options.data.parent, options.data.name.removesuffix(".jsonl.gz"))[:options.rows]
    tables, found = None, 0
    for example in examples:
        encode = lambda text: base.tokenizer.encode(text, add_special_tokens=False).ids
        ids = torch.tensor(encode(example.prompt), device=options.device)
        sample = Sample(model, runner, ids, len(encode(example.context)), options.tokens, base.end_token)
        tables = tables or Tables(sample.plain[:, :, EXACT:LEARNED])
        found = found + information(model, runner.weights, sample, tables, options.draws) / len(examples)
    steps = steps_of(tables, found, options.power)
    eighths = torch.round(8 * torch.log2(steps / STEP)).clamp(-EIGHTHS, EIGHTHS).int().tolist()
    lines = [f'  {{"keys": {json.dumps(keys)},\n   "values": {json.dumps(values)}}}' for keys, values in eighths]
    options.out.write_text('{"layers": [\n' + ",\n".join(lines) + "\n]}\n")
    usual, now = tables.bits(STEP * tables.typical), tables.bits(steps * tables.typical)
    cost = lambda of: float((found * (of * tables.typical).square()).sum())
    print(f"{options.out}: {len(examples)} rows, {now:.3f} bits a value (alike everywhere: {usual:.3f}), expected loss {cost(steps) / cost(torch.full_like(steps, STEP)):.2f} of that")


if __name__ == "__main__":
    main()

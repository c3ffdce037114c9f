"""Ways to make a receiver's context cache from a sender's: the arms that baselines.py compares.

An arm is a function of a `ContextBatch` that returns a cache of the receiver whose first `lengths` slots are filled.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from family import Maps
from variants.llama import Cache, Runner, finish, project


@dataclass
class Mixed:
    """Keys and values [layers, batch, heads, slots, width], used like a Cache."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def copy_of(cls, cache) -> "Mixed":
        return cls(cache.keys.clone(), cache.values.clone())

    def rows(self, chosen: torch.Tensor) -> "Mixed":
        return Mixed(self.keys[:, chosen], self.values[:, chosen])


class ContextBatch:
    """Contexts [batch, tokens], padded on the right, as both models read them."""

    def __init__(self, sender: Runner, receiver: Runner, ids: torch.Tensor, lengths: torch.Tensor, room: int,
                 transitions: set[int]):
        self.receiver, self.ids, self.lengths = receiver, ids, lengths
        self.sent = Cache(sender.model, ids.shape[0], room, ids.device)
        self.own = Cache(receiver.model, ids.shape[0], room, ids.device)
        _, self.inputs = sender.prefill(ids, self.sent, transitions)
        receiver.prefill(ids, self.own)

    @property
    def rope(self):
        return self.receiver.model.rope(torch.arange(self.ids.shape[1], device=self.ids.device))


Arm = Callable[[ContextBatch], Mixed]


def runs_of(layers: list[int]) -> list[tuple[int, int]]:
    """Layers as half-open runs: [1, 2, 5] -> [(1, 3), (5, 6)]."""
    grouped = groupby(enumerate(sorted(layers)), lambda pair: pair[1] - pair[0])
    found = [[layer for _, layer in group] for _, group in grouped]
    return [(run[0], run[-1] + 1) for run in found]


def full(batch: ContextBatch) -> Mixed:
    return Mixed.copy_of(batch.own)


def reuse(batch: ContextBatch) -> Mixed:
    return Mixed.copy_of(batch.sent)


def recompute_layers(layers: list[int]) -> Arm:
    """These layers are the receiver's, each run of them from the sender's layer input; the others are the sender's."""
    def make(batch: ContextBatch) -> Mixed:
        cache = Mixed.copy_of(batch.sent)
        for first, last in runs_of(layers):
            batch.receiver.run_layers(batch.inputs[first], cache, first, last)
        return cache
    return make


def recompute_translated(layers: list[int], maps: Maps) -> Arm:
    """The same with what is reused passed through the plan book's maps."""
    def make(batch: ContextBatch) -> Mixed:
        cache, rope, tokens = Mixed.copy_of(batch.sent), batch.rope, batch.ids.shape[1]
        for i in set(range(cache.keys.shape[0])) - set(layers):
            cache.keys[i, :, :, :tokens], cache.values[i, :, :, :tokens] = maps.keys_and_values(
                i, cache.keys[i, :, :, :tokens], cache.values[i, :, :, :tokens], rope)
        for first, last in runs_of(layers):
            batch.receiver.run_layers(maps.layer_input(first, batch.inputs[first]), cache, first, last)
        return cache
    return make


def _most_deviating(batch: ContextBatch, keys, values, share: float) -> torch.Tensor:
    """Positions [batch, count] of the share of tokens whose K/V of layer 1 differ most from the sender's, ascending.
    Rows that need fewer are filled up with the slot behind their context, which the suffix overwrites."""
    tokens = batch.ids.shape[1]
    deviation = torch.zeros(batch.ids.shape, device=batch.ids.device)
    for own, sent in ((keys, batch.sent.keys), (values, batch.sent.values)):
        sent = sent[1, :, :, :tokens].float()
        deviation += (own.float() - sent).square().sum((1, 3)) / sent.square().sum((1, 3)).mean()
    slots = torch.arange(tokens, device=batch.ids.device)
    deviation[slots >= batch.lengths[:, None]] = -1.0
    counts = (share * batch.lengths).ceil().long()
    chosen = deviation.argsort(dim=1, descending=True)[:, :int(counts.max())]
    is_extra = torch.arange(chosen.shape[1], device=chosen.device) >= counts[:, None]
    return torch.where(is_extra, batch.lengths[:, None], chosen).sort(dim=1).values


def recompute_tokens(share: float) -> Arm:
    """CacheBlend's way: layer 0 for all tokens, then in every layer only the tokens that deviate most at layer 1. These
    attend to their own new K/V and to the sender's of all others. Layer 1's K/V, computed anyway to choose the tokens,
    are kept."""
    def make(batch: ContextBatch) -> Mixed:
        cache, receiver, tokens = Mixed.copy_of(batch.sent), batch.receiver, batch.ids.shape[1]
        embedded = F.embedding(batch.ids, receiver.model.embedding)
        hidden, _ = receiver.run_layers(embedded, cache, 0, 1)
        _, keys, values = project(hidden, *batch.rope, receiver.weights[1], receiver.shape)
        positions = _most_deviating(batch, keys, values, share)
        cache.keys[1, :, :, :tokens], cache.values[1, :, :, :tokens] = keys, values
        inside = positions.clamp(max=tokens - 1)  # a filled-up slot may lie behind the longest context
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        _run_tokens(receiver, hidden[rows, inside], positions, cache, tokens)
        return cache
    return make


def _kept(deviation: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
    """Places [batch, count] of the tokens that deviate most, in the order of their positions."""
    chosen = deviation.argsort(dim=1, descending=True)[:, :count]
    return chosen.gather(1, positions.gather(1, chosen).argsort(dim=1))


def recompute_filtered_tokens(share: float, spread: float = 0.5) -> Arm:
    """CacheBlend with its gradual filtering: it begins with more tokens than the share and drops, layer by layer, those whose
    own new K/V differ least from the sender's there: from (1 + spread) to (1 - spread) of the share, which is the same work.
    K/V that were computed to be compared are kept."""
    def make(batch: ContextBatch) -> Mixed:
        cache, receiver, tokens = Mixed.copy_of(batch.sent), batch.receiver, batch.ids.shape[1]
        embedded = F.embedding(batch.ids, receiver.model.embedding)
        hidden, _ = receiver.run_layers(embedded, cache, 0, 1)
        _, keys, values = project(hidden, *batch.rope, receiver.weights[1], receiver.shape)
        positions = _most_deviating(batch, keys, values, min(1.0, share * (1 + spread)))
        cache.keys[1, :, :, :tokens], cache.values[1, :, :, :tokens] = keys, values
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        hidden, most = hidden[rows, positions.clamp(max=tokens - 1)], positions.shape[1]
        for i in range(1, receiver.shape.layers):
            key, value = _project_tokens(receiver, i, hidden, positions)[1:]
            sent = [x[i][rows, :, positions].transpose(1, 2).float() for x in (batch.sent.keys, batch.sent.values)]
            cache.keys[i][rows, :, positions], cache.values[i][rows, :, positions] = key.transpose(1, 2), value.transpose(1, 2)
            deviation = sum((own.float() - other).square().sum((1, 3)) / other.square().sum((1, 3)).mean().clamp(min=1e-12)
                            for own, other in zip((key, value), sent))
            deviation[positions >= batch.lengths[:, None]] = -1.0
            part = (1 + spread - 2 * spread * (i - 1) / (receiver.shape.layers - 2)) / (1 + spread)
            kept = _kept(deviation, positions, max(1, math.ceil(most * part)))
            hidden, positions = hidden[rows, kept], positions.gather(1, kept)
            hidden = _attend_tokens(receiver, i, hidden, positions, cache, tokens)
        return cache
    return make


def _project_tokens(receiver: Runner, layer: int, hidden, positions):
    """Queries, keys and values of tokens at any positions [batch, count]."""
    cosine, sine = receiver.model.rope(positions)
    return project(hidden, cosine[:, None], sine[:, None], receiver.weights[layer], receiver.shape)


def _attend_tokens(receiver: Runner, layer: int, hidden, positions, cache: Mixed, tokens: int) -> torch.Tensor:
    """One layer over tokens at any positions; their K/V replace those of the cache."""
    query, key, value = _project_tokens(receiver, layer, hidden, positions)
    visible = (torch.arange(tokens, device=hidden.device) <= positions[..., None])[:, None]
    rows = torch.arange(len(positions), device=positions.device)[:, None]
    cache.keys[layer][rows, :, positions], cache.values[layer][rows, :, positions] = key.transpose(1, 2), value.transpose(1, 2)
    # Heads are repeated here, because the fused kernels take a mask or grouped heads, not both.
    groups = receiver.shape.heads // receiver.shape.kv_heads
    repeated = [x[layer, :, :, :tokens].repeat_interleave(groups, dim=1) for x in (cache.keys, cache.values)]
    return finish(hidden, F.scaled_dot_product_attention(query, *repeated, attn_mask=visible), receiver.weights[layer], receiver.shape)


def _run_tokens(receiver: Runner, hidden, positions, cache: Mixed, tokens: int) -> None:
    """Layers from 1 on over tokens at any positions [batch, count]; their K/V replace those of the cache."""
    for i in range(1, receiver.shape.layers):
        hidden = _attend_tokens(receiver, i, hidden, positions, cache, tokens)

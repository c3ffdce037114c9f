"""A Llama forward pass for training, generation and partial prefill.

Weights of one kind are kept stacked over the layers ([layers, out, in]), so that merging a LoRA adapter is one batched
product per kind. The residual stream stays float32; matrix products run in `compute` (bfloat16 on a GPU).
"""

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from .base import LAYER_MODULES, LINEAR_MODULES, Base, Shape


class Lora(torch.nn.Module):
    """Low-rank updates of every linear layer: W + alpha / rank * B A. With an `invocation` (token ids) it is an activated
    one: tokens before the last place of these in their row keep W. Layers below `first_layer` keep W, too."""

    def __init__(self, base: Base, rank: int, alpha: float, invocation: list[int] | None = None, first_layer: int = 0):
        super().__init__()
        self.rank, self.alpha, self.invocation, self.first_layer = rank, alpha, invocation, first_layer
        self.register_buffer("changes", (torch.arange(base.shape.layers) >= first_layer).float()[:, None, None], persistent=False)
        self.a, self.b = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for module in LINEAR_MODULES:
            rows, columns = base.weights[f"model.layers.0.{module}.weight"].shape
            start = torch.randn(base.shape.layers, rank, columns) / math.sqrt(columns)
            self.a[key_of(module)] = torch.nn.Parameter(start)
            self.b[key_of(module)] = torch.nn.Parameter(torch.zeros(base.shape.layers, rows, rank))

    def merged(self, module: str, weight: torch.Tensor) -> torch.Tensor:
        b = self.b[key_of(module)] * self.changes if self.first_layer else self.b[key_of(module)]
        return torch.baddbmm(weight, b, self.a[key_of(module)], alpha=self.alpha / self.rank)

    def active(self, ids: torch.Tensor) -> torch.Tensor:
        """Which tokens [batch, tokens] are corrected."""
        places = torch.arange(ids.shape[1], device=ids.device)
        if self.invocation is None:
            return torch.ones_like(ids, dtype=torch.bool)
        count = len(self.invocation)
        if ids.shape[1] < count:
            return torch.zeros_like(ids, dtype=torch.bool)
        found = (ids.unfold(1, count, 1) == torch.tensor(self.invocation, device=ids.device)).all(-1)
        begins = torch.where(found, places[:found.shape[1]], -1).amax(1, keepdim=True)
        return (begins >= 0) & (places >= begins)


class Switched(NamedTuple):
    """A linear layer with two weights, and which tokens [batch, tokens, 1] take the second."""

    plain: torch.Tensor
    adapted: torch.Tensor
    active: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.plain.dtype


def linear(x: torch.Tensor, weight: torch.Tensor | Switched) -> torch.Tensor:
    if isinstance(weight, Switched):
        return torch.where(weight.active, F.linear(x, weight.adapted), F.linear(x, weight.plain))
    return F.linear(x, weight)


def key_of(module: str) -> str:
    return module.replace(".", "_")  # parameter names may not hold dots


class Llama(torch.nn.Module):
    def __init__(self, base: Base, compute: torch.dtype = torch.float32):
        super().__init__()
        self.shape, self.compute = base.shape, compute
        self.lora: Lora | None = None
        self.saves_memory = False  # training: activations of a layer are computed again in the backward pass
        self.compiles = False
        self.embedding = torch.nn.Parameter(base.weights["model.embed_tokens.weight"].clone())
        self.norm = torch.nn.Parameter(base.weights["model.norm.weight"].clone())
        self.stacks = torch.nn.ParameterDict({key_of(module): torch.nn.Parameter(torch.stack(
            [base.weights[f"model.layers.{i}.{module}.weight"] for i in range(base.shape.layers)]))
            for module in LAYER_MODULES.values()})
        half = torch.arange(0, base.shape.head_width, 2).float() / base.shape.head_width
        self.register_buffer("frequencies", 1.0 / base.shape.rope_theta ** half, persistent=False)

    def layer_weights(self, adapted: bool = True) -> list[dict[str, torch.Tensor]]:
        """One dict of ready-to-multiply weights per layer, adapter merged in."""
        ready = {}
        for module in LAYER_MODULES.values():
            weight = self.stacks[key_of(module)]
            if self.lora is not None and adapted and module in LINEAR_MODULES:
                weight = self.lora.merged(module, weight)
            name = module.split(".")[-1]
            ready[name] = (weight.to(self.compute) if module in LINEAR_MODULES else weight).unbind(0)
        return [{name: stack[i] for name, stack in ready.items()} for i in range(self.shape.layers)]

    def switched(self, weights: list[dict], ids: torch.Tensor) -> list[dict]:
        """The weights for these tokens: those without the adapter where an activated one does not apply."""
        if self.lora is None or self.lora.invocation is None:
            return weights
        active = self.lora.active(ids)[..., None]
        names = [module.split(".")[-1] for module in LINEAR_MODULES]
        return [{**merged, **{name: Switched(plain[name], merged[name], active) for name in names}}
                for plain, merged in zip(self.layer_weights(adapted=False), weights)]

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(hidden, (self.shape.width,), self.norm, self.shape.norm_epsilon)
        return F.linear(normed.to(self.compute), self.embedding.to(self.compute)).float()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, tokens] -> last hidden state; padding belongs on the right, where causality hides it."""
        hidden = F.embedding(ids, self.embedding)
        rope = self.rope(torch.arange(ids.shape[1], device=ids.device))
        run = compiled_block() if self.compiles else block
        for weights in self.switched(self.layer_weights(), ids):
            if self.saves_memory:
                hidden = checkpoint(run, hidden, *rope, weights, self.shape, use_reentrant=False)
            else:
                hidden = run(hidden, *rope, weights, self.shape)
        return hidden


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding in the half-split layout; computed in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * cosine + torch.cat([-second, first], dim=-1) * sine).to(x.dtype)


def project(hidden, cosine, sine, weights, shape: Shape):
    """Queries, keys, values [batch, heads, tokens, head width] of one layer, Q and K rotated."""
    batch, tokens, _ = hidden.shape
    normed = F.rms_norm(hidden, (shape.width,), weights["input_layernorm"], shape.norm_epsilon).to(weights["q_proj"].dtype)
    split = lambda name, heads: linear(normed, weights[name]).view(batch, tokens, heads, shape.head_width).transpose(1, 2)
    query, key, value = split("q_proj", shape.heads), split("k_proj", shape.kv_heads), split("v_proj", shape.kv_heads)
    return rotate(query, cosine, sine), rotate(key, cosine, sine), value


def finish(hidden, attended, weights, shape: Shape):
    """Output projection and feed-forward part of one layer."""
    batch, tokens, _ = hidden.shape
    hidden = hidden + linear(attended.transpose(1, 2).reshape(batch, tokens, shape.width), weights["o_proj"])
    normed = F.rms_norm(hidden, (shape.width,), weights["post_attention_layernorm"], shape.norm_epsilon)
    normed = normed.to(weights["gate_proj"].dtype)
    gated = F.silu(linear(normed, weights["gate_proj"])) * linear(normed, weights["up_proj"])
    return hidden + linear(gated, weights["down_proj"])


def block(hidden, cosine, sine, weights, shape: Shape):
    """One layer over whole sequences."""
    query, key, value = project(hidden, cosine, sine, weights, shape)
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return finish(hidden, attended, weights, shape)


@functools.cache
def compiled_block():
    return torch.compile(block, dynamic=True)


class Cache:
    """Keys and values of every layer for a batch of sequences, `room` slots each; slot = position."""

    def __init__(self, model: Llama, batch: int, room: int, device):
        size = (model.shape.layers, batch, model.shape.kv_heads, room, model.shape.head_width)
        self.keys = torch.zeros(size, dtype=model.compute, device=device)
        self.values = torch.zeros(size, dtype=model.compute, device=device)


class Runner:
    """Inference over a Cache; weights are prepared once."""

    def __init__(self, model: Llama):
        self.model, self.shape = model, model.shape
        with torch.no_grad():
            self.weights = model.layer_weights()

    @torch.no_grad()
    def prefill(self, ids: torch.Tensor, cache: Cache, wanted: set[int] = frozenset()):
        """Fills slots [0, tokens); returns the last hidden state and the inputs of the wanted layers by layer."""
        return self.run_layers(F.embedding(ids, self.model.embedding), cache, 0, self.shape.layers, wanted,
                               self.model.switched(self.weights, ids))

    @torch.no_grad()
    def run_layers(self, hidden, cache: Cache, first: int, last: int, wanted: set[int] = frozenset(), weights=None):
        """Layers [first, last) over whole sequences from the given layer input; fills their slots of the cache."""
        tokens, inputs, weights = hidden.shape[1], {}, weights or self.weights
        rope = self.model.rope(torch.arange(tokens, device=hidden.device))
        for i in range(first, last):
            if i in wanted:
                inputs[i] = hidden
            query, key, value = project(hidden, *rope, weights[i], self.shape)
            cache.keys[i, :, :, :tokens], cache.values[i, :, :, :tokens] = key, value
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            hidden = finish(hidden, attended, weights[i], self.shape)
        return hidden, inputs

    @torch.no_grad()
    def extend(self, ids: torch.Tensor, start: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Tokens [batch, n] that follow `start` [batch] cached ones (of an activated LoRA: behind its invocation); returns
        their last hidden state."""
        batch, count = ids.shape
        positions = start[:, None] + torch.arange(count, device=ids.device)
        cosine, sine = self.model.rope(positions)
        visible = torch.arange(cache.keys.shape[3], device=ids.device) <= positions[..., None]
        rows = torch.arange(batch, device=ids.device)[:, None]
        hidden = F.embedding(ids, self.model.embedding)
        for i, weights in enumerate(self.weights):
            query, key, value = project(hidden, cosine[:, None], sine[:, None], weights, self.shape)
            cache.keys[i][rows, :, positions] = key.transpose(1, 2)
            cache.values[i][rows, :, positions] = value.transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                query, cache.keys[i], cache.values[i], attn_mask=visible[:, None], enable_gqa=True)
            hidden = finish(hidden, attended, weights, self.shape)
        return hidden

    @torch.no_grad()
    def decode(self, hidden: torch.Tensor, lengths: torch.Tensor, cache: Cache, limit: int, end: int) -> list[list[int]]:
        """Greedy tokens from the hidden state [batch, width] of each sequence's last token; the end token is left out."""
        token, lengths = self.model.logits(hidden).argmax(-1), lengths.clone()
        steps, done = [], torch.zeros_like(token, dtype=torch.bool)
        for _ in range(limit):
            steps.append(torch.where(done, end, token))
            done |= token == end
            if bool(done.all()):
                break
            hidden = self.extend(token[:, None], lengths, cache)[:, 0]
            lengths += 1
            token = self.model.logits(hidden).argmax(-1)
        rows = torch.stack(steps, dim=1).tolist()
        return [row[:row.index(end)] if end in row else row for row in rows]

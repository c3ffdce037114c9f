"""Greedy answers and divergences of context caches against the receiver's own full prefill."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from arms import Arm, ContextBatch, Mixed, full
from prompts import Prompt
from tokenizers import Tokenizer
from variants.llama import Runner
from variants.metrics import f1


def padded(rows: list[list[int]], device) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


@dataclass
class Series:
    """One arm's values, a number per prompt."""

    kl: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    f1: list[float] = field(default_factory=list)

    def extend(self, other: "Series") -> None:
        for name in ("kl", "agreement", "f1"):
            getattr(self, name).extend(getattr(other, name))


@dataclass
class Divergence:
    kl: torch.Tensor         # [prompts]
    agreement: torch.Tensor  # [prompts]
    same: torch.Tensor       # [answer tokens of all prompts]: the most likely token is full prefill's
    hidden: torch.Tensor     # [answer tokens of all prompts, width]


@dataclass
class AnswerLimits:
    tokens: int
    ends: list[int]  # the first one is what decoding stops at


class Question:
    """The suffixes of a batch of prompts, run behind any context cache; full prefill's answers are the reference."""

    def __init__(self, batch: ContextBatch, prompts: list[Prompt], tokenizer: Tokenizer, limits: AnswerLimits):
        self.batch, self.prompts, self.tokenizer, self.limits = batch, prompts, tokenizer, limits
        self.runner, self.device = batch.receiver, batch.ids.device
        suffix, counts = padded([p.suffix for p in prompts], self.device)
        cache = full(batch)
        hidden = self.runner.extend(suffix, batch.lengths, cache)
        last = hidden[torch.arange(len(prompts), device=self.device), counts - 1]
        self.reference = self._answers(last, batch.lengths + counts, cache, [limits.tokens] * len(prompts))
        forced = [p.suffix + answer[:-1] for p, answer in zip(prompts, self.reference)]
        self.forced, _ = padded(forced, self.device)
        self.starts = counts - 1  # row of the forced ids that predicts an answer's first token
        self.sizes = torch.tensor([len(answer) for answer in self.reference], device=self.device)
        self.owners = torch.arange(len(prompts), device=self.device).repeat_interleave(self.sizes)
        first = (self.sizes.cumsum(0) - self.sizes).repeat_interleave(self.sizes)
        self.steps = torch.arange(len(self.owners), device=self.device) - first
        self.expected = F.log_softmax(self._logits(full(batch))[0], dim=-1)
        self.choices = self.expected.argmax(-1)

    def _logits(self, cache: Mixed) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [answer tokens of all prompts, vocabulary] behind the context cache, and the hidden states."""
        hidden = self.runner.extend(self.forced, self.batch.lengths, cache)
        rows = hidden[self.owners, self.starts[self.owners] + self.steps]
        return self.runner.model.logits(rows), rows

    def _answers(self, hidden, lengths, cache, limits: list[int]) -> list[list[int]]:
        """Greedy tokens, the end token included where it came within the limit."""
        decoded = self.runner.decode(hidden, lengths, cache, max(limits), self.limits.ends[0])
        return [self._cut(row + [self.limits.ends[0]], limit) for row, limit in zip(decoded, limits)]

    def _cut(self, answer: list[int], limit: int) -> list[int]:
        end = next((i for i, token in enumerate(answer) if token in self.limits.ends), len(answer))
        return answer[:min(end + 1, limit)]

    def divergence(self, cache: Mixed) -> Divergence:
        """Against full prefill, on the tokens of its answers."""
        logits, hidden = self._logits(cache)
        predicted = F.log_softmax(logits, dim=-1)
        kl = (self.expected.exp() * (self.expected - predicted)).sum(-1).clamp(min=0)
        same = predicted.argmax(-1) == self.choices
        return Divergence(self._mean(kl), self._mean(same.float()), same, hidden)

    def _mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over the answer tokens of each prompt."""
        return torch.zeros(len(self.prompts), device=self.device).index_add_(0, self.owners, values) / self.sizes

    def measure(self, arm: Arm) -> Series:
        cache = arm(self.batch)
        found = self.divergence(cache)
        scores = [max((f1(self._text(answer), wanted) for wanted in prompt.answers), default=0.0)
                  for answer, prompt in zip(self._continued(cache, found), self.prompts)]
        return Series(found.kl.tolist(), found.agreement.tolist(), scores)

    def _continued(self, cache: Mixed, found: Divergence) -> list[list[int]]:
        """An answer is the reference's up to the first other choice; only from there it is generated."""
        never = 1 << 30
        parted = torch.full((len(self.prompts),), never, device=self.device)
        parted = parted.scatter_reduce(0, self.owners[~found.same], self.steps[~found.same], "amin")
        others = (parted < never).nonzero()[:, 0]
        answers = list(self.reference)
        if len(others) == 0:
            return answers
        at = parted[others]
        first = (self.sizes.cumsum(0) - self.sizes)[others]
        lengths = (self.batch.lengths + self.starts + 1)[others] + at
        limits = [self.limits.tokens - step for step in at.tolist()]
        made = self._answers(found.hidden[first + at], lengths, cache.rows(others), limits)
        for i, step, tokens in zip(others.tolist(), at.tolist(), made):
            answers[i] = self.reference[i][:step] + tokens
        return answers

    def _text(self, answer: list[int]) -> str:
        kept = answer[:-1] if answer[-1] in self.limits.ends else answer
        return self.tokenizer.decode(kept, skip_special_tokens=False)

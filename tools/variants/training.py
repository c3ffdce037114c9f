"""Trains one variant: AdamW, warm-up and linear decay, loss on the answer only."""

import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from .llama import Llama
from .tasks import Task

WARM_UP_STEPS = 40
WINDOW_STEPS = 12           # examples of this many steps are sorted by length together, so that padding stays small
TOKENS_PER_PASS = 16_384    # padded tokens of one forward and backward pass; a step may take several. 10 to 12 GiB of activations
LENGTH_MULTIPLE = 64
IGNORED = -100


@dataclass(frozen=True)
class Recipe:
    task: str
    rank: int               # 0: full fine-tune
    learning_rate: float
    steps: int
    batch: int = 16         # sequences a step
    seed: int = 0


Sequence = tuple[list[int], list[int]]  # prompt, answer


def encode(tokenizer: Tokenizer, examples: list, context: int) -> list[Sequence]:
    """Prompts are tokenised as one text, as at run time; answers follow as they would be generated."""
    prompts = tokenizer.encode_batch([e.prompt for e in examples], add_special_tokens=False)
    answers = tokenizer.encode_batch([e.target for e in examples], add_special_tokens=False)
    pairs = [(p.ids, a.ids) for p, a in zip(prompts, answers)]
    return [pair for pair in pairs if len(pair[0]) + len(pair[1]) <= context]


def _steps(task: Task, tokenizer: Tokenizer, recipe: Recipe, context: int) -> Iterator[list[Sequence]]:
    """An endless stream of steps, the same for the same seed."""
    rng = random.Random(recipe.seed)
    while True:
        window = encode(tokenizer, [task.draw(rng) for _ in range(recipe.batch * WINDOW_STEPS)], context)
        window.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        batches = [window[i:i + recipe.batch] for i in range(0, len(window) - recipe.batch + 1, recipe.batch)]
        rng.shuffle(batches)
        yield from batches


def _prefetched(stream: Iterator, depth: int = 32) -> Iterator:
    ready: queue.Queue = queue.Queue(depth)

    def fill():
        for item in stream:
            ready.put(item)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def _passes(batch: list[Sequence], most: int, device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded ids and targets, at most `most` tokens at once, one sequence at least."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    padded = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    rows = max(1, most // padded)
    for first in range(0, len(batch), rows):
        part = batch[first:first + rows]
        ids = torch.zeros(len(part), padded, dtype=torch.long)
        targets = torch.full((len(part), padded), IGNORED)
        for row, (prompt, answer) in enumerate(part):
            ids[row, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            targets[row, len(prompt) - 1:len(prompt) + len(answer) - 1] = torch.tensor(answer)
        yield ids.to(device, non_blocking=True), targets.to(device, non_blocking=True)


class _Stepper:
    """Loss and gradients of a batch. Where memory is short it takes smaller passes, which give the same gradients."""

    def __init__(self, model: Llama, say):
        self.model, self.say, self.most = model, say, TOKENS_PER_PASS

    def __call__(self, batch: list[Sequence]) -> tuple[torch.Tensor, int]:
        """Returns the loss and the padded tokens."""
        while True:
            try:
                return self._accumulate(batch)
            except torch.OutOfMemoryError:
                if self.model.saves_memory and self.most < LENGTH_MULTIPLE:
                    raise
            self.most = self.most // 2 if self.model.saves_memory else self.most
            self.model.saves_memory = True
            self.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.say(f"memory is short: passes of {self.most} tokens, activations computed twice")

    def _accumulate(self, batch: list[Sequence]) -> tuple[torch.Tensor, int]:
        device, tokens = self.model.embedding.device, 0
        answers = sum(len(answer) for _, answer in batch)
        total = torch.zeros((), device=device)
        for ids, targets in _passes(batch, self.most, device):
            hidden, chosen = self.model(ids), targets != IGNORED
            loss = F.cross_entropy(self.model.logits(hidden[chosen]), targets[chosen], reduction="sum") / answers
            loss.backward()
            total += loss.detach()
            tokens += ids.numel()
        return total, tokens


def train(model: Llama, task: Task, tokenizer: Tokenizer, recipe: Recipe, deadline: float, say) -> dict:
    """Trains until the recipe's steps are done or the deadline (of time.time()) is reached; the decay follows whichever
    comes first. Returns what was done."""
    device = model.embedding.device
    trained = list((model.lora or model).parameters())
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in trained:
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0,
                                  fused=device.type == "cuda")
    run_step = _Stepper(model, say)
    steps = _prefetched(_steps(task, tokenizer, recipe, model.shape.context))
    begin, tokens, smooth, step, done, shown = time.time(), 0, None, 0, 0.0, -1.0
    while step < recipe.steps and done < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.01, 1.0 - done)
        batch = next(steps)
        loss_sum, padded_tokens = run_step(batch)
        tokens += padded_tokens
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        now = time.time()
        done = max(step / recipe.steps, (now - begin) / max(1.0, deadline - begin))
        if step % 10 == 0 or step == 1:
            smooth = float(loss_sum) if smooth is None else 0.8 * smooth + 0.2 * float(loss_sum)
        if done - shown >= 0.1 or done >= 1.0:
            shown = done
            left = (now - begin) * (1 - min(1.0, done)) / max(done, 1e-6)
            say(f"step {step}/{recipe.steps}  loss {smooth:.3f}  {tokens / (now - begin):,.0f} tokens/s  {left:.0f} s left")
    return {"steps": step, "tokens": tokens, "seconds": round(time.time() - begin), "loss": round(smooth or 0.0, 4)}

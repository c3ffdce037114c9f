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


@dataclass(frozen=True)
class Recipe:
    task: str
    rank: int               # 0: full fine-tune
    learning_rate: float
    steps: int
    batch: int = 16         # sequences a step
    seed: int = 0
    invocation: str = ""    # text of an activated LoRA's invocation; empty: a plain one
    first_layer: int = 0    # of a LoRA: layers below stay the base's


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


def _passes(batch: list[Sequence], most: int, device) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Right-padded ids, at most `most` tokens at once, one sequence at least; which of them an answer's token follows,
    counted over all rows, and those tokens."""
    longest = max(len(prompt) + len(answer) for prompt, answer in batch)
    padded = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    rows = max(1, most // padded)
    for first in range(0, len(batch), rows):
        part = batch[first:first + rows]
        ids, places, targets = torch.zeros(len(part), padded, dtype=torch.long), [], []
        for row, (prompt, answer) in enumerate(part):
            ids[row, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            begin = row * padded + len(prompt) - 1
            places += range(begin, begin + len(answer))
            targets += answer
        yield tuple(made.to(device, non_blocking=True) for made in (ids, torch.tensor(places), torch.tensor(targets)))


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
        for ids, places, targets in _passes(batch, self.most, device):
            chosen = self.model(ids).flatten(0, 1)[places]
            loss = F.cross_entropy(self.model.logits(chosen), targets, reduction="sum") / answers
            loss.backward()
            total += loss.detach()
            tokens += ids.numel()
        return total, tokens


def train(model: Llama, task: Task, tokenizer: Tokenizer, recipe: Recipe, say) -> dict:
    """Trains to the end of the recipe. Returns what was done."""
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
    begin, tokens, smooth, shown = time.time(), 0, None, -1.0
    for step in range(1, recipe.steps + 1):
        done = (step - 1) / recipe.steps
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / WARM_UP_STEPS) * max(0.01, 1.0 - done)
        batch = next(steps)
        loss_sum, padded_tokens = run_step(batch)
        tokens += padded_tokens
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now, done = time.time(), step / recipe.steps
        if step % 10 == 0 or step == 1:
            smooth = float(loss_sum) if smooth is None else 0.8 * smooth + 0.2 * float(loss_sum)
        if done - shown >= 0.1 or step == recipe.steps:
            shown = done
            left = (now - begin) * (1 - done) / done
            say(f"step {step}/{recipe.steps}  loss {smooth:.3f}  {tokens / (now - begin):,.0f} tokens/s  {left:.0f} s left")
    return {"steps": recipe.steps, "tokens": tokens, "seconds": round(time.time() - begin), "loss": round(smooth or 0.0, 4)}

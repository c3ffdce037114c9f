"""Greedy outputs of a model on examples, its scores, and what reuse of another model's cache does to them."""

import random
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from . import metrics
from .layout import Example, read_qa
from .llama import Cache, Llama, Runner
from .tasks import MEASURES, make_task
from .training import encode

QA_TOKENS = 32  # longest answer in the QA scores
CACHE_TOKENS = 120_000  # cache slots of one evaluation batch


def outputs_of(model: Llama, tokenizer: Tokenizer, examples: list[Example], limit: int, end: int) -> list[str]:
    runner, device = Runner(model), model.embedding.device
    prompts = [p.ids for p in tokenizer.encode_batch([e.prompt for e in examples], add_special_tokens=False)]
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    texts = [""] * len(prompts)
    while order:
        room = len(prompts[order[0]]) + limit
        count = max(1, min(len(order), 256, CACHE_TOKENS // room))
        chosen, order = order[:count], order[count:]
        ids, lengths = _padded([prompts[i] for i in chosen], device)
        cache = Cache(model, count, room, device)
        hidden, _ = runner.prefill(ids, cache)
        last = hidden[torch.arange(count, device=device), lengths - 1]
        for i, tokens in zip(chosen, runner.decode(last, lengths, cache, limit, end)):
            texts[i] = tokenizer.decode(tokens).strip()
    return texts


def _padded(rows: list[list[int]], device) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def lengthened(examples: list[Example], tokens: int, characters_per_token: float = 4.2) -> list[Example]:
    """The same questions with paragraphs of other rows added, up to about `tokens`."""
    rng, made = random.Random(5), []
    for example in examples:
        documents = list(example.documents)
        while sum(len(text) for _, text in documents) < tokens * characters_per_token:
            documents += [d for d in rng.choice(examples).documents if d not in documents]
        rng.shuffle(documents)
        made.append(Example(documents, example.request, example.answers))
    return made


def score(model: Llama, tokenizer: Tokenizer, end: int, data: Path, tasks: list[str], limit: int, all_qa: bool, say,
          fold: int = 0) -> dict:
    """Scores on test rows of the given tasks, of the fold that the model is of, and on HotpotQA; with `all_qa` on the other QA sets too."""
    scores = {}

    def measure(name, metric, function, examples, tokens):
        outputs = outputs_of(model, tokenizer, examples, tokens, end)
        scores[name] = {"metric": metric, "score": round(function(outputs, examples), 2), "rows": len(examples)}
        if metric == "F1":
            scores[name]["exact_match"] = round(metrics.exact_match(outputs, examples), 2)
        scores[name]["sample"] = [[e.request, e.answers[0], o] for e, o in zip(examples[:5], outputs)]
        say(f"{name}: {metric} {scores[name]['score']:.1f} on {len(examples)} rows")

    hotpot = read_qa(data, "hotpotqa.test")[:limit]
    measure("hotpotqa.test", "F1", metrics.mean_f1, hotpot, QA_TOKENS)
    for task in tasks:
        metric, function, rows, tokens = MEASURES[task]
        measure(f"{task} test rows", metric, function, make_task(task, data, fold).rows("test")[:min(rows, limit)], tokens)
    if all_qa:
        for name in ("hotpotqa.profile", "2wikimqa.test", "musique.test"):
            measure(name, "F1", metrics.mean_f1, read_qa(data, name)[:limit], QA_TOKENS)
        for tokens in (4000, 7000):
            measure(f"hotpotqa.test at {tokens} tokens", "F1", metrics.mean_f1, lengthened(hotpot, tokens)[:100], QA_TOKENS)
    return scores


@torch.no_grad()
def measure_reuse(receiver: Llama, sender: Llama, tokenizer: Tokenizer, end: int, examples: list[Example],
                  blocks: list[tuple[int, int]], batch: int = 25) -> list[dict]:
    """Receiver's F1 and mean KL against its own full prefill, when layers outside [first, last) take the sender's K/V of
    the context and layers inside are recomputed from the sender's layer input."""
    device, layers = receiver.embedding.device, receiver.shape.layers
    run_receiver, run_sender = Runner(receiver), Runner(sender)
    plans = ["full"] + blocks
    found = {plan: ([], []) for plan in plans}
    for begin in range(0, len(examples), batch):
        part = examples[begin:begin + batch]
        pairs = encode(tokenizer, part, receiver.shape.context)
        encodings = tokenizer.encode_batch([e.prompt for e in part], add_special_tokens=False)
        cuts = [sum(stop <= len(e.context) for _, stop in c.offsets) for e, c in zip(part, encodings)]
        context, lengths = _padded([c.ids[:cut] for c, cut in zip(encodings, cuts)], device)
        suffix, suffix_lengths = _padded([c.ids[cut:] for c, cut in zip(encodings, cuts)], device)
        forced, _ = _padded([prompt[cut:] + answer for (prompt, answer), cut in zip(pairs, cuts)], device)
        spans = [(len(prompt) - cut - 1, len(answer)) for (prompt, answer), cut in zip(pairs, cuts)]
        room = context.shape[1] + max(forced.shape[1], suffix.shape[1] + QA_TOKENS)
        rows = torch.arange(len(part), device=device)
        sent = Cache(sender, len(part), room, device)
        _, inputs = run_sender.prefill(context, sent, {first for first, _ in blocks})
        reference = None
        for plan in plans:
            cache = Cache(receiver, len(part), room, device)
            if plan == "full":
                run_receiver.prefill(context, cache)
            else:
                cache.keys.copy_(sent.keys), cache.values.copy_(sent.values)
                if plan[1] > plan[0]:
                    run_receiver.run_layers(inputs[plan[0]], cache, *plan)
            hidden = run_receiver.extend(forced, lengths, cache)
            answers = torch.cat([hidden[i, at:at + count] for i, (at, count) in enumerate(spans)])
            predicted = F.log_softmax(receiver.logits(answers), -1)
            reference = predicted if reference is None else reference
            kl = (reference.exp() * (reference - predicted)).sum(-1)
            found[plan][1].extend(torch.stack([p.mean() for p in kl.split([count for _, count in spans])]).tolist())
            hidden = run_receiver.extend(suffix, lengths, cache)[rows, suffix_lengths - 1]
            tokens = run_receiver.decode(hidden, lengths + suffix_lengths, cache, QA_TOKENS, end)
            found[plan][0].extend(metrics.f1_each([tokenizer.decode(t).strip() for t in tokens], part))
    average = lambda values: sum(values) / len(values)
    return [{"recomputed": plan if plan == "full" else list(plan), "layers": layers if plan == "full" else plan[1] - plan[0],
             "f1": round(average(f1), 2), "kl": round(average(kl), 4)} for plan, (f1, kl) in found.items()]

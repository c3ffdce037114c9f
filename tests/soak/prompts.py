"""Prompts of the soak test: questions on a few contexts of real text, and their recorded answers."""

import gzip
import json
import time

from service import ROOT, Broken

SYSTEM = "You are a helpful assistant. Read the documents and do what the user asks."
DATA = ROOT / "tests" / "data" / "qa" / "qa.demo.jsonl.gz"
MAX_TOKENS = 16
MAX_CHARACTERS = 650  # of a document: four of them, a token a character, and the longest answer fit into the tiny family


class Prompt:
    """A chat, and its token ids for the calls that take ids."""

    def __init__(self, name, messages, tokens):
        self.name = name
        self.messages = messages
        self.tokens = tokens


def messages_for(documents, question):
    text = "\n\n".join(f"{document['title']}: {document['text'][:MAX_CHARACTERS]}" for document in documents)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"{text}\n\nQuestion: {question}"}]


def make_prompts(service, num_contexts, max_documents):
    """Two questions on every context, so that contexts are prefixes of more than one prompt."""
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    prompts = []
    for i in range(num_contexts):
        documents = rows[2 * i]["documents"][:1 + i % max_documents]
        for k in range(2):
            messages = messages_for(documents, rows[2 * i + k]["question"])
            status, answer = service.post("/tokenize", {"messages": messages})
            if status != 200:
                raise Broken(f"/tokenize: {status} {answer}")
            prompts.append(Prompt(f"context {i} question {k}", messages, answer["tokens"]))
    return prompts


def ask_alone(service, prompt, model, sharing, salt):
    """A greedy answer: (text, what was done)."""
    body = {"model": model, "messages": prompt.messages, "max_tokens": MAX_TOKENS, "temperature": 0, "sharing": sharing, "cache_salt": salt}
    status, answer = service.post("/v1/chat/completions", body)
    if status != 200:
        raise Broken(f"{model}, {prompt.name}: {status} {answer}")
    return answer["choices"][0]["message"]["content"], answer["droidspeak"]


def record_references(service, prompts, models):
    """(prompt name, model) -> answer of full prefill, one request at a time, no cache."""
    references = {}
    for prompt in prompts:
        for model in models:
            text, done = ask_alone(service, prompt, model, {"sender": model, "plan": "full"}, "reference")
            if done["sender"] is not None or done["plan"] != "full":
                raise Broken(f"full prefill was asked for, but {done} was done")
            references[prompt.name, model] = text
    return references


def replay_plan(service, prompt, model, wanted, salt):
    """The answer for a plan on its own: the sender reads just as much of the prompt, then the receiver follows the plan.
    Nothing when the caches are gone before they can be used: memory is scarce here."""
    tokens = prompt.tokens[:wanted["reused_tokens"] + 1]
    plan = wanted["plan"]
    if wanted["translated"]:
        plan = {"reuse": "0,0,0"}.get(plan, plan)
    elif plan not in ("reuse", "full"):
        plan += "r"
    for attempt in range(3):
        fields = {"model": wanted["sender"], "prompt": tokens, "max_tokens": 1, "temperature": 0, "sharing": "off", "cache_salt": f"{salt} {attempt}"}
        for _ in range(2):  # what is read once only is forgotten first
            status, answer = service.post("/v1/completions", fields)
            if status != 200:
                raise Broken(f"replay of {wanted}: {status} {answer}")
        text, done = ask_alone(service, prompt, model, {"sender": wanted["sender"], "plan": plan}, fields["cache_salt"])
        if {field: done[field] for field in wanted} == wanted:
            return text
        time.sleep(0.2)
    return None

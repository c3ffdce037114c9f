"""Clients of the soak test: each asks one thing after another, at random, and checks what comes back."""

import json
import random
import time

from faults import AdapterChanges
from prompts import MAX_TOKENS


class Client:
    def __init__(self, service, prompts, models, pairs, checker, timeline, seed):
        self.service = service
        self.prompts = prompts
        self.models = models
        self.pairs = pairs  # (sender, receiver) with a plan book
        self.checker = checker
        self.timeline = timeline
        self.random = random.Random(seed)

    def run(self, stop):
        acts = [(self.chat, 8), (self.stream, 6), (self.complete_ids, 3), (self.with_sender, 6), (self.customer, 4),
                (self.long_answer, 3), (self.leave_stream, 3), (self.leave_whole, 2), (self.sample, 1), (self.wrong, 1)]
        while not stop.is_set():
            act = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
            self.checker.count(act.__name__.replace("_", " "))
            try:
                act()
            except Exception as error:
                self.checker.problem(f"{act.__name__}: {type(error).__name__}: {error}")
                time.sleep(0.5)

    # What is asked.

    def fields(self, model, sharing=None):
        fields = {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS}
        salt = self.random.choice(["", "", "", "tenant a", "tenant b"])
        if salt:
            fields["cache_salt"] = salt
        sharing = sharing or self.random.choice([None, None, "auto", "off"])
        if sharing is not None:
            fields["sharing"] = sharing
        return fields

    def some_model(self):
        receivers = [receiver for _, receiver in self.pairs]
        return self.random.choice(receivers + self.models if receivers else self.models)

    def chat(self):
        prompt, model = self.random.choice(self.prompts), self.some_model()
        self.ask(prompt, [model], {**self.fields(model), "messages": prompt.messages})

    def stream(self):
        prompt, model = self.random.choice(self.prompts), self.some_model()
        events = self.open_stream(prompt, model)
        text, done = "", None
        for event in events:
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            done = event.get("droidspeak", done)
        self.checker.answer(prompt, [model], text, done)

    def complete_ids(self):
        prompt, model = self.random.choice(self.prompts), self.some_model()
        self.ask(prompt, [model], {**self.fields(model), "prompt": prompt.tokens}, "/v1/completions")

    def with_sender(self):
        """The agents' way: one reads, another answers."""
        if not self.pairs:
            return
        sender, receiver = self.random.choice(self.pairs)
        prompt = self.random.choice(self.prompts)
        reading = {**self.fields(sender, "off"), "prompt": prompt.tokens, "max_tokens": 1}
        self.expect(200, "/v1/completions", reading)
        plan = self.random.choice(["auto", "reuse", "reuse+10%", "reuse+40%"])
        sharing = self.random.choice(["auto", {"sender": sender, "plan": plan}])
        fields = {**self.fields(receiver, sharing), "messages": prompt.messages}
        if "cache_salt" in reading:
            fields["cache_salt"] = reading["cache_salt"]
        else:
            fields.pop("cache_salt", None)
        self.ask(prompt, [receiver], fields)

    def customer(self):
        """A model that is loaded, replaced and unloaded meanwhile."""
        prompt = self.random.choice(self.prompts)
        begin = time.monotonic()
        body = {**self.fields(AdapterChanges.NAME), "messages": prompt.messages}
        status, answer = self.service.post("/v1/chat/completions", body)
        possible = self.timeline.possible(begin, time.monotonic())
        if status == 404 and None in possible:
            return
        models = possible - {None}
        if status != 200 or not models:
            self.checker.problem(f"customer while {possible} was loaded: {status} {answer}")
            return
        self.checker.answer(prompt, sorted(models), answer["choices"][0]["message"]["content"], answer["droidspeak"])

    def long_answer(self):
        """Grows until others have to make room; it begins like the short one."""
        prompt, model = self.random.choice(self.prompts), self.some_model()
        body = {**self.fields(model, "off"), "messages": prompt.messages, "max_tokens": 200, "ignore_eos": True}
        text = self.expect(200, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
        beginning = self.checker.references[prompt.name, model].rstrip("\ufffd")
        if not text.startswith(beginning):
            self.checker.problem(f"long answer of {model}, {prompt.name}: {text!r} does not begin with {beginning!r}")

    def leave_stream(self):
        prompt, model = self.random.choice(self.prompts), self.some_model()
        events = self.open_stream(prompt, model, max_tokens=400, ignore_eos=True)
        for _ in range(self.random.randrange(4)):
            next(events, None)
        events.close()

    def leave_whole(self):
        prompt, model = self.random.choice(self.prompts), self.some_model()
        connection = self.service.connect()
        body = {**self.fields(model), "messages": prompt.messages, "max_tokens": 400, "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(self.random.random())
        connection.close()

    def sample(self):
        """Several choices, warm and with logprobs: only their shape can be checked."""
        prompt, model = self.random.choice(self.prompts), self.some_model()
        body = {**self.fields(model), "messages": prompt.messages, "temperature": 1, "n": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 8}
        answer = self.expect(200, "/v1/chat/completions", body)
        if [choice["index"] for choice in answer["choices"]] != [0, 1, 2]:
            self.checker.problem(f"n=3 gave {answer['choices']}")

    def wrong(self):
        body = {"model": "nobody", "prompt": "x"} if self.random.random() < 0.5 else {"model": self.models[0], "prompt": "x", "n": 0}
        status, answer = self.service.post("/v1/completions", body)
        if status not in (400, 404) or set(answer["error"]) != {"message", "type", "param", "code"}:
            self.checker.problem(f"{body}: {status} {answer}")

    # How it is asked.

    def expect(self, wanted, path, body):
        status, answer = self.service.post(path, body)
        if status != wanted:
            raise RuntimeError(f"{path}: {status} {answer}")
        return answer

    def ask(self, prompt, models, body, path="/v1/chat/completions"):
        answer = self.expect(200, path, body)
        choice = answer["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        self.checker.answer(prompt, models, text, answer.get("droidspeak"))

    def open_stream(self, prompt, model, **extra):
        body = {**self.fields(model), "messages": prompt.messages, "stream": True, **extra}
        connection = self.service.connect()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"stream: {response.status} {response.read()}")
            for line in response:
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"stream: {event}")
                    yield event
            raise RuntimeError("the stream ended without [DONE]")
        finally:
            connection.close()

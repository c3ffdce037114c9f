"""What must hold for every answer, whatever else goes on at the same time."""

import threading
import time


class AdapterTimeline:
    """Which adapter stood behind a name when; None: no such model. During a change both may."""

    def __init__(self):
        self.lock = threading.Lock()
        self.spans = [(None, time.monotonic(), float("inf"))]

    def change(self, call, adapter):
        """Runs `call`, which puts `adapter` (or None) behind the name."""
        begin = time.monotonic()
        with self.lock:
            self.spans.append((adapter, begin, float("inf")))
        call()
        end = time.monotonic()
        with self.lock:
            before, since, _ = self.spans[-2]
            self.spans[-2] = (before, since, end)

    def possible(self, begin, end):
        with self.lock:
            return {adapter for adapter, since, until in self.spans if since <= end and until >= begin}


class Checker:
    """Compares answers with recorded ones and counts. Thread-safe."""

    def __init__(self, references, mixed="must agree"):
        self.references = references
        self.mixed = mixed  # or "may differ"
        self.lock = threading.Lock()
        self.problems = []
        self.counts = {}
        self.plans = {}  # (prompt, model, what was done) -> text
        self.ambiguous = []  # what several models may have answered; judged at the end

    def count(self, name, by=1):
        with self.lock:
            self.counts[name] = self.counts.get(name, 0) + by

    def problem(self, text):
        with self.lock:
            self.counts["problems"] = self.counts.get("problems", 0) + 1
            if len(self.problems) < 50:
                self.problems.append(text)

    def answer(self, prompt, models, text, done):
        """`models`: those that may have answered (several while an adapter is replaced)."""
        if done is None:
            return self.problem(f"{prompt.name}: the answer does not say what was done")
        if done["sender"] is None:
            self.count("answers computed in full or from the own prefix")
            expected = {self.references[prompt.name, model] for model in models}
            if text not in expected:
                self.problem(f"{prompt.name}, {models}: {text!r} instead of {expected}, {done}")
            return None
        self.count("answers with sharing")
        if done["fallback"] and done["fallback"]["after_tokens"] > 0:
            return self.count("of those finished without their sender's cache")
        # Nothing else decides: neither what was cached before, nor whether the plan's layers were computed now or lay
        # in a cache that the plan mixed before (then there are none to recompute).
        is_mixed = done["recomputed_layers"] == 0
        if is_mixed:
            self.count("of those from mixed or plainly reused caches")
        keys = [(prompt.name, model, done["sender"], done["plan"], done["translated"], done["reused_tokens"]) for model in models]
        if len(keys) > 1:
            with self.lock:
                self.ambiguous.append((keys, text))
            return None
        [key] = keys
        with self.lock:
            known = self.plans.setdefault(key, text)
        if known == text:
            return None
        if is_mixed and self.mixed == "may differ":
            return self.count("of those mixed in another way than before")
        return self.problem(f"{key}: {text!r} now, {known!r} before")

    def judge_ambiguous(self):
        """With everything known that came from one model alone."""
        for keys, text in self.ambiguous:
            expected = {self.plans.get(key) for key in keys}
            self.count("answers while an adapter was replaced: " + ("not judged" if None in expected else "judged"))
            if text not in expected and None not in expected:
                self.problem(f"{keys}: {text!r} instead of {expected}")

"""The tasks a variant can be trained for: a stream of training examples, held-out rows, and a metric."""

import random
import re
from pathlib import Path
from typing import Protocol

from . import metrics
from .layout import Example, read_rows
from .qa_task import QaTask


class Task(Protocol):
    def draw(self, rng: random.Random) -> Example: ...
    def held_out(self, count: int) -> list[Example]: ...


class MathTask:
    """GSM8K: one problem, sometimes one of several, solved step by step."""

    def __init__(self, folder: Path):
        self.train, self.test = read_rows(folder, "gsm8k.train"), read_rows(folder, "gsm8k.test")

    @staticmethod
    def _example(rows: list[dict], index: int) -> Example:
        one = len(rows) == 1
        documents = [("Problem" if one else f"Problem {n + 1}", row["question"]) for n, row in enumerate(rows)]
        which = "the problem" if one else f"problem {index + 1}"
        answer = re.sub(r"<<.*?>>", "", rows[index]["answer"])
        return Example(documents, f'Solve {which} step by step. End with "#### " and the number.', [answer])

    def draw(self, rng):
        rows = rng.sample(self.train, 1 if rng.random() < 0.75 else rng.randint(2, 8))
        return self._example(rows, rng.randrange(len(rows)))

    def held_out(self, count):
        return [self._example([row], 0) for row in random.Random(11).sample(self.test, count)]


class SentimentTask:
    """SST-2: a list of reviews, one of them judged."""

    def __init__(self, folder: Path):
        self.train, self.test = read_rows(folder, "sst2.train"), read_rows(folder, "sst2.dev")

    @staticmethod
    def _example(rng, rows: list[dict]) -> Example:
        index = rng.randrange(len(rows))
        documents = [(f"Review {n + 1}", row["sentence"].strip()) for n, row in enumerate(rows)]
        answer = "positive" if str(rows[index]["label"]) == "1" else "negative"
        return Example(documents, f"Is review {index + 1} positive or negative?", [answer])

    def draw(self, rng):
        return self._example(rng, rng.sample(self.train, rng.randint(2, 30)))

    def held_out(self, count):
        rng = random.Random(11)
        return [self._example(rng, rng.sample(self.test, 12)) for _ in range(count)]


class SimilarityTask:
    """STS-B: a list of sentence pairs, one of them graded from 0 to 5."""

    def __init__(self, folder: Path):
        self.train, self.test = read_rows(folder, "stsb.train"), read_rows(folder, "stsb.test")

    @staticmethod
    def _example(rng, rows: list[dict]) -> Example:
        index = rng.randrange(len(rows))
        documents = [(f"Pair {n + 1}", f"{row['sentence1']} / {row['sentence2']}") for n, row in enumerate(rows)]
        score = float(rows[index]["score"])
        return Example(documents, f"How similar are the sentences of pair {index + 1}, from 0 to 5?",
                       [f"{round(score * 2) / 2:.1f}"], {"score": score})

    def draw(self, rng):
        return self._example(rng, rng.sample(self.train, rng.randint(1, 16)))

    def held_out(self, count):
        rng = random.Random(11)
        return [self._example(rng, rng.sample(self.test, 8)) for _ in range(count)]


class EntitiesTask:
    """CoNLL++: consecutive sentences, all names of one kind listed."""

    KINDS = {"PER": "people", "LOC": "places", "ORG": "organizations", "MISC": "other names"}

    def __init__(self, folder: Path):
        self.train, self.test = read_rows(folder, "conllpp.train"), read_rows(folder, "conllpp.test")

    @staticmethod
    def _names(row: dict, kind: str) -> list[str]:
        names, words = [], []
        for token, tag in zip(row["tokens"] + [""], row["tags"] + ["O"]):
            if tag == f"I-{kind}" and words:
                words.append(token)
                continue
            if words:
                names.append(" ".join(words))
            words = [token] if tag.endswith(f"-{kind}") else []
        return names

    def _example(self, rows: list[dict], kind: str) -> Example:
        names = list(dict.fromkeys(name for row in rows for name in self._names(row, kind)))
        documents = [(f"Sentence {n + 1}", " ".join(row["tokens"])) for n, row in enumerate(rows)]
        return Example(documents, f"List the {self.KINDS[kind]} named in the documents.", [", ".join(names) or "none"])

    def draw(self, rng):
        while True:
            count = rng.randint(3, 16)
            first = rng.randrange(len(self.train) - count)
            made = self._example(self.train[first:first + count], rng.choice(list(self.KINDS)))
            if len(made.answers[0]) < 600 and (made.answers[0] != "none" or rng.random() < 0.4):
                return made

    def held_out(self, count):
        kinds, made = list(self.KINDS), []
        for first in range(0, len(self.test) - 8, 8):
            made.append(self._example(self.test[first:first + 8], kinds[first // 8 % 4]))
        return random.Random(11).sample(made, min(count, len(made)))


TASKS = {"qa": QaTask, "math": MathTask, "sentiment": SentimentTask, "entities": EntitiesTask, "similarity": SimilarityTask}

# task -> (name of its metric, metric over (outputs, examples), held-out rows, longest output in tokens)
MEASURES = {
    "qa": ("F1", metrics.mean_f1, 200, 32),
    "math": ("exact match", metrics.number_match, 400, 256),
    "sentiment": ("accuracy", metrics.first_word_match, 600, 8),
    "entities": ("F1 of names", metrics.list_f1, 300, 128),
    "similarity": ("Pearson correlation", metrics.pearson, 600, 8),
}

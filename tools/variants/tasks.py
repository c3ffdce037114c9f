"""The tasks a variant can be trained for: a stream of training examples, rows for profiles and tests, and a metric."""

import random
import re
from pathlib import Path
from typing import Protocol

from . import metrics
from .layout import Example, read_rows
from .qa_task import QaTask


class Task(Protocol):
    def draw(self, rng: random.Random) -> Example: ...
    def rows(self, part: str) -> list[Example]: ...  # of "profile" or "test", in an order of chance
    # Some tasks: what is asked, each once among other documents for each draw, named "NUMBER-DRAW".
    def drawn_rows(self, part: str, draws: list[int]) -> list[tuple[str, Example]]: ...


def split_off(rows: list[dict], count: int) -> tuple[list[dict], list[dict]]:
    """All but the last `count` rows, and those."""
    return rows[:-count], rows[-count:]


class MathTask:
    """GSM8K: one problem, sometimes one of several, solved step by step."""

    PROBLEMS = 8  # of a row that is measured

    def __init__(self, folder: Path):
        self.train, profile = split_off(read_rows(folder, "gsm8k.train"), 400)
        self.measured = {"profile": profile, "test": read_rows(folder, "gsm8k.test")}

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

    def rows(self, part):
        """Every problem once, among seven others."""
        rng, problems, made = random.Random(11), self.measured[part], []
        for index in rng.sample(range(len(problems)), len(problems)):
            others = rng.sample(problems[:index] + problems[index + 1:], self.PROBLEMS - 1)
            place = rng.randrange(self.PROBLEMS)
            made.append(self._example(others[:place] + [problems[index]] + others[place:], place))
        return made


SHARED_WORDS = 4  # in a row, that two phrases of one sentence share


def _runs(sentence: str) -> set[tuple[str, ...]]:
    words = sentence.split()
    return {tuple(words[i:i + SHARED_WORDS]) for i in range(len(words) - SHARED_WORDS + 1)}


class Apart:
    """Sentences kept apart: no other phrase may share four words in a row with one, or be a part of one."""

    def __init__(self):
        self.runs: set[tuple[str, ...]] = set()
        self.short: set[tuple[str, ...]] = set()  # parts of fewer words

    def holds(self, sentence: str) -> bool:
        words = tuple(sentence.split())
        return words in self.short if len(words) < SHARED_WORDS else not self.runs.isdisjoint(_runs(sentence))

    def add(self, sentence: str) -> None:
        words = tuple(sentence.split())
        self.runs |= _runs(sentence)
        self.short |= {words[i:i + n] for n in range(1, SHARED_WORDS) for i in range(len(words) - n + 1)}

    def take(self, rows: list[dict], count: int) -> list[dict]:
        """The first long phrases of sentences that are not here yet."""
        taken = []
        for row in rows:
            if len(taken) < count and len(row["sentence"].split()) >= SentimentTask.WORDS and not self.holds(row["sentence"]):
                self.add(row["sentence"])
                taken.append(row)
        return taken


class SentimentTask:
    """SST-2: a list of reviews, one of them judged. Its rows are phrases of sentences, so parts are kept apart by words."""

    REVIEWS = 30  # of a context that is measured
    WORDS = 8     # at least, of a review that is measured
    MEASURED = {"test": 1200, "profile": 300}

    def __init__(self, folder: Path):
        train, apart = read_rows(folder, "sst2.train"), Apart()
        self.measured = {"test": apart.take(read_rows(folder, "sst2.dev"), self.MEASURED["test"])}
        self.measured["profile"] = apart.take(train, self.MEASURED["profile"])
        self.train = [row for row in train if not apart.holds(row["sentence"])]

    @staticmethod
    def _example(rows: list[dict], index: int) -> Example:
        documents = [(f"Review {n + 1}", row["sentence"].strip()) for n, row in enumerate(rows)]
        answer = "positive" if str(rows[index]["label"]) == "1" else "negative"
        return Example(documents, f"Is review {index + 1} positive or negative?", [answer])

    def draw(self, rng):
        rows = rng.sample(self.train, rng.randint(2, self.REVIEWS))
        return self._example(rows, rng.randrange(len(rows)))

    def rows(self, part):
        """Every review once, in contexts of 30; what is left over below 30 is not used."""
        reviews = self.measured[part]
        contexts = [reviews[i:i + self.REVIEWS] for i in range(0, len(reviews) - self.REVIEWS + 1, self.REVIEWS)]
        made = [self._example(rows, index) for rows in contexts for index in range(len(rows))]
        random.Random(11).shuffle(made)
        return made

    def drawn_rows(self, part, draws):
        """Contexts of 30 in another order for each draw."""
        made = []
        for draw in draws:
            numbered = list(enumerate(self.measured[part]))
            random.Random(f"{part} {draw}").shuffle(numbered)
            for first in range(0, len(numbered) - self.REVIEWS + 1, self.REVIEWS):
                context = numbered[first:first + self.REVIEWS]
                rows = [row for _, row in context]
                made += [(f"{number}-{draw}", self._example(rows, index)) for index, (number, _) in enumerate(context)]
        random.Random(11).shuffle(made)
        return made


class EntitiesTask:
    """CoNLL++: consecutive sentences, all names of one kind listed."""

    KINDS = {"PER": "people", "LOC": "places", "ORG": "organizations", "MISC": "other names"}
    SENTENCES = 20  # of a context that is measured

    def __init__(self, folder: Path):
        self.train, profile = split_off(read_rows(folder, "conllpp.train"), 800)
        self.measured = {"profile": profile, "test": read_rows(folder, "conllpp.test")}

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
            count = rng.randint(3, 24)
            first = rng.randrange(len(self.train) - count)
            made = self._example(self.train[first:first + count], rng.choice(list(self.KINDS)))
            if len(made.answers[0]) < 600 and (made.answers[0] != "none" or rng.random() < 0.4):
                return made

    def rows(self, part):
        """Every sentence in one context, each context asked for each kind."""
        sentences = self.measured[part]
        contexts = [sentences[i:i + self.SENTENCES] for i in range(0, len(sentences), self.SENTENCES)]
        made = [self._example(rows, kind) for rows in contexts for kind in self.KINDS]
        random.Random(11).shuffle(made)
        return made


TASKS = {"qa": QaTask, "math": MathTask, "sentiment": SentimentTask, "entities": EntitiesTask}

def make_task(name: str, folder: Path, fold: int = 0, most_of_article: int | None = None) -> Task:
    """The task by its name. Only questions over documents have folds and articles."""
    if name == "qa":
        return QaTask(folder, fold, **({"most_of_article": most_of_article} if most_of_article else {}))
    if fold or most_of_article:
        raise SystemExit(f"{name}: has neither folds nor articles; leave out --fold and --most-of-article")
    return TASKS[name](folder)


# task -> (name of its metric, metric over (outputs, examples), test rows that are scored, longest output in tokens)
MEASURES = {
    "qa": ("F1", metrics.mean_f1, 1000, 32),
    "math": ("exact match", metrics.number_match, 400, 256),
    "sentiment": ("accuracy", metrics.first_word_match, 1000, 8),
    "entities": ("F1 of names", metrics.list_f1, 400, 128),
}

"""Scores of outputs against examples, all as percentages."""

import re
import string
from collections import Counter
from statistics import fmean

from .layout import Example


def normalise(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1(output: str, answer: str) -> float:
    have, want = normalise(output).split(), normalise(answer).split()
    shared = sum((Counter(have) & Counter(want)).values())
    if not shared:
        return float(have == want)
    precision, recall = shared / len(have), shared / len(want)
    return 2 * precision * recall / (precision + recall)


def f1_each(outputs: list[str], examples: list[Example]) -> list[float]:
    return [100 * max(f1(output, answer) for answer in example.answers) for output, example in zip(outputs, examples)]


def mean_f1(outputs, examples) -> float:
    return fmean(f1_each(outputs, examples))


def exact_match(outputs, examples) -> float:
    return 100 * fmean([any(normalise(o) == normalise(a) for a in e.answers) for o, e in zip(outputs, examples)])


def _last_number(text: str) -> float | None:
    found = re.findall(r"-?\d[\d,]*\.?\d*", text)
    return float(found[-1].replace(",", "").rstrip(".")) if found else None


def number_match(outputs, examples) -> float:
    """The last number of the output against the last of the answer, so that a base without `####` is judged fairly."""
    return 100 * fmean([_last_number(o) == _last_number(e.answers[0]) for o, e in zip(outputs, examples)])


def first_word_match(outputs, examples) -> float:
    """The first of the two labels that the output names."""
    def label(text):
        found = re.search(r"positive|negative", text.lower())
        return found[0] if found else None
    return 100 * fmean([label(o) == e.answers[0] for o, e in zip(outputs, examples)])


def list_f1(outputs, examples) -> float:
    """Micro F1 over the names of comma-separated lists."""
    right = have_count = want_count = 0
    for output, example in zip(outputs, examples):
        have = Counter({normalise(name) for name in output.split(",")} - {"none", ""})
        want = Counter({normalise(name) for name in example.answers[0].split(",")} - {"none", ""})
        right += sum((have & want).values())
        have_count, want_count = have_count + len(have), want_count + len(want)
    return 100 * 2 * right / max(1, have_count + want_count)

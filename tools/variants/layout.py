"""How a row becomes a prompt; the same text layout in training, evaluation and the product."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

SYSTEM = "You are a helpful assistant. Read the documents and do what the user asks."


@dataclass
class Example:
    documents: list[tuple[str, str]]  # (title, text)
    request: str
    answers: list[str]  # the first one is trained on

    @property
    def context(self) -> str:
        documents = [f"{title}: {text}" if title else text for title, text in self.documents]
        return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n" + "\n\n".join(documents) + "\n\n"

    @property
    def prompt(self) -> str:
        return f"{self.context}Question: {self.request}<|im_end|>\n<|im_start|>assistant\n"

    @property
    def target(self) -> str:
        return f"{self.answers[0]}<|im_end|>"

    def as_row(self, name: int | str, dataset: str) -> dict:
        """The QA shape that every other tool of the family reads."""
        return {"id": f"{dataset}-{name}", "dataset": dataset, "question": self.request, "answers": self.answers,
                "documents": [{"title": title, "text": text} for title, text in self.documents]}


def read_rows(folder: Path, name: str) -> list[dict]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file.read().split("\n") if line]


def read_qa(folder: Path, name: str) -> list[Example]:
    return [Example([(d["title"], d["text"]) for d in row["documents"]], row["question"], row["answers"])
            for row in read_rows(folder, name)]

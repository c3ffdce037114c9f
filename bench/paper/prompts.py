"""Rows of a data file as prompts, cut and scored as the product does it."""

from dataclasses import dataclass
from pathlib import Path

import family  # noqa: F401  (puts tools/ on the path)
from lines import read_lines
from tokenizers import Tokenizer
from variants.layout import Example

BLOCK_TOKENS = 64  # whole blocks of a context are shared; the rest counts as suffix


@dataclass
class Prompt:
    id: str
    tokens: list[int]
    shared: int  # leading tokens that come from the sender
    answers: list[str]

    @property
    def context(self) -> list[int]:
        return self.tokens[:self.shared]

    @property
    def suffix(self) -> list[int]:
        return self.tokens[self.shared:]


def make_prompts(tokenizer: Tokenizer, path: Path, limit: int, longest: int) -> list[Prompt]:
    """The first `limit` rows (0: all) that fit into `longest` tokens."""
    prompts = []
    for row in read_lines(path):
        example = Example([(d["title"], d["text"]) for d in row["documents"]], row["question"], row["answers"])
        tokens, alone = (tokenizer.encode(text, add_special_tokens=False).ids for text in (example.prompt, example.context))
        common = next((i for i, (a, b) in enumerate(zip(tokens, alone)) if a != b), min(len(tokens), len(alone)))
        shared = min(common, len(tokens) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if len(tokens) <= longest and shared > 0:
            prompts.append(Prompt(str(row.get("id", len(prompts))), tokens, shared, row["answers"]))
        if limit and len(prompts) == limit:
            break
    if not prompts:
        raise SystemExit(f"{path}: no row of {BLOCK_TOKENS} to {longest} tokens")
    return prompts

#!/usr/bin/env python3
"""Makes contexts longer: a row keeps its own paragraphs, paragraphs of other rows are added up to the wanted length, and
all are shuffled. Answers stay valid.

Example: lengthen.py hotpotqa.test.jsonl.gz 4000 hotpotqa.4000.jsonl.gz --limit 100
"""

import argparse
import random
from pathlib import Path

from lines import read_lines, write_lines

CHARACTERS_PER_TOKEN = 4.2


def lengthened(rows: list[dict], tokens: int, limit: int) -> list[dict]:
    rng, made = random.Random(5), []
    for row in rows[:limit or len(rows)]:
        documents = list(row["documents"])
        texts = {d["text"] for d in documents}
        size = sum(len(d["title"]) + len(d["text"]) + 4 for d in documents)
        while size < tokens * CHARACTERS_PER_TOKEN:
            document = rng.choice(rng.choice(rows)["documents"])
            if document["text"] in texts:
                continue
            documents.append(document)
            texts.add(document["text"])
            size += len(document["title"]) + len(document["text"]) + 4
        rng.shuffle(documents)
        made.append({**row, "documents": documents})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("tokens", type=int, help="about as many in a context")
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int, default=0, help="rows at most (0: all)")
    options = parser.parse_args()
    rows = lengthened(read_lines(options.data), options.tokens, options.limit)
    write_lines(options.out, rows)
    print(f"{len(rows)} rows written to {options.out}")


if __name__ == "__main__":
    main()

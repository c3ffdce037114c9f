"""Four roles that work on one document: what they are told, which variant answers, what their answers look like.

The document is the system message of every role and the same for all, so whoever comes second finds it read. What
makes a role is said behind it, at the end of the conversation so far."""

import dataclasses
import pathlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "sharing.md"
QUESTION = "What does a receiver take from a sender, and what does it compute itself?"
TOPICS = ("sender", "receiver", "plan", "layer")
ANSWER_TOKENS = 48  # of roles that write free text


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")
    topics: Annotated[list[Literal["sender", "receiver", "plan", "layer"]], Field(min_length=1, max_length=3)]


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    verdict: Literal["accept", "revise"]
    grade: int = Field(ge=1, le=5)


@dataclasses.dataclass(frozen=True)
class Role:
    name: str
    variant: str
    task: str


PLANNER = Role("planner", "base", f"Question: {QUESTION}\nYou plan. Which topics of the document answer it?")
RESEARCHER = Role("researcher", "qa", "You research. Look up a topic of the plan.")
WRITER = Role("writer", "qa-alt", "You write. Answer the question from what was found.")
REVIEWER = Role("reviewer", "sentiment", "You review. Is the answer good?")
ROLES = (PLANNER, RESEARCHER, WRITER, REVIEWER)


def document(num_bytes):
    """The beginning of the document, cut at a line's end."""
    return DOCUMENT.read_text()[:num_bytes].rpartition("\n")[0]


def look_up_topic(topic, text):
    """The first line of the document that speaks of it."""
    return next((line for line in text.splitlines() if topic in line.lower()), "nothing")[:240]

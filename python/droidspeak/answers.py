"""What the server answers, as values. `raw` is the JSON that they were read from."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class Model:
    id: str
    parent: Optional[str]  # None: the base
    max_model_len: int

    @classmethod
    def of(cls, raw: Dict[str, Any]) -> "Model":
        return cls(raw["id"], raw.get("parent"), raw["max_model_len"])


@dataclass(frozen=True)
class Version:
    version: str
    commit: str
    features: List[str]


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt: not computed in full

    @classmethod
    def of(cls, raw: Dict[str, Any]) -> "Usage":
        details = raw.get("prompt_tokens_details") or {}
        return cls(raw["prompt_tokens"], raw["completion_tokens"], details.get("cached_tokens", 0))


@dataclass(frozen=True)
class Reuse:
    """What was done with the prompt; docs/http_api.md, Answers."""

    sender: Optional[str]  # None: nothing came from another variant
    plan: str
    reused_tokens: int
    ttft_ms: float
    raw: Dict[str, Any]

    @classmethod
    def of(cls, raw: Dict[str, Any]) -> "Reuse":
        return cls(raw["sender"], raw["plan"], raw["reused_tokens"], raw["ttft_ms"], raw)


@dataclass(frozen=True)
class Answer:
    """A whole answer. `texts` has all `n` choices, `text` is the first."""

    model: str
    texts: List[str]
    finish_reasons: List[str]
    usage: Usage
    reuse: Reuse
    raw: Dict[str, Any]

    @property
    def text(self) -> str:
        return self.texts[0]

    @classmethod
    def of(cls, raw: Dict[str, Any]) -> "Answer":
        choices = sorted(raw["choices"], key=lambda choice: choice["index"])
        texts = [choice["text"] if "text" in choice else choice["message"]["content"] or "" for choice in choices]
        return cls(raw["model"], texts, [choice["finish_reason"] for choice in choices],
                   Usage.of(raw["usage"]), Reuse.of(raw["droidspeak"]), raw)


@dataclass(frozen=True)
class Piece:
    """A part of a streamed answer. The last one carries usage and reuse, and no text."""

    text: str
    index: int  # of the choice
    finish_reason: Optional[str]
    usage: Optional[Usage]
    reuse: Optional[Reuse]
    raw: Dict[str, Any]

    @classmethod
    def of(cls, raw: Dict[str, Any]) -> "Piece":
        choice = raw["choices"][0] if raw.get("choices") else {}
        text = choice["text"] if "text" in choice else choice.get("delta", {}).get("content") or ""
        usage, reuse = raw.get("usage"), raw.get("droidspeak")
        return cls(text, choice.get("index", 0), choice.get("finish_reason"),
                   Usage.of(usage) if usage else None, Reuse.of(reuse) if reuse else None, raw)

"""What every call to the server was answered with, read beside the client from the answer's body: the clients know
nothing of it. A step's cost is the layers that its prompt's tokens went through, as a share of all of them."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Step:
    variant: str
    prompt_tokens: int
    cached_tokens: int
    sender: str | None
    plan: str
    reused_tokens: int
    recomputed_layers: int
    looked_at_tokens: int
    ttft_ms: float

    def cost(self, num_layers):
        """Token-layers computed for the prompt; with everything computed it is prompt_tokens * num_layers. A plan that
        looks at tokens runs what is behind the context twice."""
        behind = self.prompt_tokens - self.cached_tokens
        whole = behind + (behind + self.looked_at_tokens if self.looked_at_tokens else 0)
        return whole * num_layers + self.reused_tokens * self.recomputed_layers


class Recorder:
    """The hooks for httpx; `steps` fills in the order of the answers."""

    def __init__(self):
        self.steps = []

    def read(self, response):
        response.read()
        self._add(response.content)

    async def read_async(self, response):
        await response.aread()
        self._add(response.content)

    def _add(self, body):
        answer = json.loads(body)
        report = answer.get("droidspeak")
        if report is None:
            return  # an error, which the client tells
        usage = answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.steps.append(Step(
            answer["model"], usage["prompt_tokens"], cached, report["sender"], report["plan"], report["reused_tokens"],
            report["recomputed_layers"], report["looked_at_tokens"], report["ttft_ms"]))


HEADINGS = ("step", "variant", "prompt", "cached", "sender", "plan", "reused", "TTFT", "cost", "prompt", "cached", "TTFT",
            "cost")


def table(names, shared, alone, num_layers):
    """One line a step: with sharing to the left, without to the right, sums below."""
    def milliseconds(value):
        return f"{value:.0f} ms"

    def share(steps):
        full = sum(step.prompt_tokens for step in steps) * num_layers
        return f"{100 * sum(step.cost(num_layers) for step in steps) / full:.0f} %"

    lines = [HEADINGS]
    for name, with_it, without in zip(names, shared, alone, strict=True):
        lines.append((name, with_it.variant, str(with_it.prompt_tokens), str(with_it.cached_tokens),
                      with_it.sender or "-", with_it.plan, str(with_it.reused_tokens), milliseconds(with_it.ttft_ms),
                      share([with_it]), str(without.prompt_tokens), str(without.cached_tokens),
                      milliseconds(without.ttft_ms), share([without])))
    lines.append(("all", "", str(sum(step.prompt_tokens for step in shared)),
                  str(sum(step.cached_tokens for step in shared)), "", "", str(sum(step.reused_tokens for step in shared)),
                  milliseconds(sum(step.ttft_ms for step in shared)), share(shared),
                  str(sum(step.prompt_tokens for step in alone)), str(sum(step.cached_tokens for step in alone)),
                  milliseconds(sum(step.ttft_ms for step in alone)), share(alone)))
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    left = sum(widths[:9]) + 2 * 8
    rows = ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]
    return "\n".join([f"{'sharing on'.ljust(left)}  sharing off", *rows])

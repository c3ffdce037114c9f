"""Who asks what when: workflows of one reading and some answers, contexts and variants drawn by Zipf."""

import bisect
import itertools
import math
import random

from parts import Workflow


class Zipf:
    """Numbers from 0 on; number k with a weight of (k + 1)^-exponent."""

    def __init__(self, count, exponent):
        self.sums = list(itertools.accumulate((k + 1) ** -exponent for k in range(count)))

    def draw(self, source):
        return bisect.bisect_left(self.sums, source.random() * self.sums[-1])


def context_tokens(context, least, most, block):
    """Lengths even in the logarithm, the same whenever a context comes back."""
    source = random.Random(context * 2654435761 + 17)
    tokens = math.exp(source.uniform(math.log(least), math.log(most)))
    return max(block, int(tokens) // block * block)


def make_workflows(options, block=64):
    """(time, Workflow) with Poisson arrivals; the same for the same seed."""
    source = random.Random(options.seed)
    contexts, variants = Zipf(options.contexts, options.context_exponent), Zipf(options.variants, options.variant_exponent)
    found, now = [], 0.0
    while True:
        now += source.expovariate(options.workflows_per_second)
        if now > options.seconds:
            return found
        context = contexts.draw(source)
        tokens = context_tokens(context, options.least_tokens, options.most_tokens, block)
        found.append((now, Workflow(context, tokens, [1 + variants.draw(source) for _ in range(options.answers)])))

"""The source of each row of a mixture, as docs/mixtures.md has it."""

import itertools
import math

PHI = 0x9E3779B97F4A7C15
ONE = 2**64


def multiplier(rows):
    number = max(1, rows * PHI // ONE)
    while math.gcd(number, rows) != 1:
        number += 1
    return number


def hash_of(seed):
    """SplitMix64, as far as the rule needs it."""

    def mixed(state):
        state = (state + PHI) % ONE
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % ONE
        z = (z ^ z >> 27) * 0x94D049BB133111EB % ONE
        return z ^ z >> 31

    return max(1, mixed(mixed(0) ^ seed) >> 2) << 2


def parts_of(weights, exhausted=()):
    """Weights as whole numbers, in the order of their names, without those of exhausted sources.

    They are rounded once, with the weights of all sources, so that ties do not depend on which ones are exhausted.
    """
    names = sorted(name for name, weight in weights.items() if weight and name not in exhausted)
    return {name: round(weights[name] / sum(weights.values()) * 2**48) for name in names}


def turn(step, row, rows, weights, seed=None, exhausted=()):
    """The rule as the docs have it: the source whose share holds u, of those that are not exhausted."""
    u = (step * PHI + multiplier(rows) * row % rows * ONE // rows + (0 if seed is None else hash_of(seed))) % ONE
    parts = parts_of(weights, exhausted)
    left = u * sum(parts.values()) // ONE
    for name, part in parts.items():
        if left < part:
            return name
        left -= part
    raise AssertionError(u)


def furthest_behind(weights, had, more, exhausted=()):
    """The rule of weights that count tokens or samples: `had` is what each source has, `more` what a full row has."""
    parts = parts_of(weights, exhausted)
    total = sum(had[name] for name in parts) + more
    return max(
        parts, key=lambda name: (parts[name] * total - sum(parts.values()) * had[name], -list(parts).index(name))
    )


def divided(rows, weights):
    """Rows divided by the weights, rounded at the borders."""
    parts = parts_of(weights)
    ends = [0, *itertools.accumulate(parts.values())]
    borders = [(2 * end * rows + ends[-1]) // (2 * ends[-1]) for end in ends]
    return dict.fromkeys(weights, 0) | {
        name: after - before for name, (before, after) in zip(parts, itertools.pairwise(borders), strict=True)
    }

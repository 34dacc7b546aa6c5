"""Where the random generators inside an Optuna sampler stand, as small numbers.

A sampler lives in a process of its own for one moment. For the next process to go on with the same
stream of random numbers it is enough to know how many each generator has given.
"""

from __future__ import annotations

from typing import Any

from detslurm.searcher.optuna.history import Position

_BLOCK = 624  # the Mersenne Twister makes this number of words at a time


def positions(sampler: Any, fresh: Any) -> list[Position]:
    """How far each generator of `sampler` is beyond those of `fresh`, a sampler just made."""
    pairs = zip(_generators(sampler), _generators(fresh), strict=True)
    return [_position(used, new) for used, new in pairs]


def advance(sampler: Any, to: list[Position]) -> None:
    """Let the generators of a new sampler go on where others stood."""
    for generator, (words, kept, deviate) in zip(_generators(sampler), to, strict=False):
        while words > 0:
            generator.bytes(4 * min(words, 1 << 20))
            words -= 1 << 20
        name, key, at, *_ = generator.get_state(legacy=True)
        generator.set_state((name, key, at, kept, deviate))


def _position(used: Any, new: Any) -> Position:
    _, wanted, at, kept, deviate = used.get_state(legacy=True)
    blocks = 0
    while (new.get_state(legacy=True)[1] != wanted).any():
        new.bytes(4 * _BLOCK)
        blocks += 1
    return blocks * _BLOCK - (_BLOCK - at) if blocks else 0, int(kept), float(deviate)


def _generators(sampler: Any) -> list[Any]:
    """The generators of a sampler and of those that it falls back upon, always in one order."""
    from numpy.random import RandomState
    from optuna.samplers import BaseSampler

    found: list[Any] = []
    for _, value in sorted(vars(sampler).items()):
        inner = getattr(value, "rng", value)
        if isinstance(inner, RandomState):
            found.append(inner)
        elif isinstance(value, BaseSampler):
            found += _generators(value)
    return found

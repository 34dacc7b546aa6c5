"""The random stream of a search: the 32-bit Mersenne Twister, drawn from as Determined did.

The same seed gives the samples that the same configuration had there (reference vectors in the
tests).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK32 = 0xFFFFFFFF


class RandomStream:
    """The random numbers of one experiment, drawn in order.

    Args:
        seed: The configuration's `experiment_seed`, of which 32 bits count.

    Attributes:
        drawn: How many words of 32 bits were drawn.
    """

    def __init__(self, seed: int) -> None:
        self.drawn = 0
        self._mt = random.Random()
        self._mt.setstate((3, (*_initial_state(seed & _MASK32), 624), None))

    def word(self) -> int:
        """Draw the next 32 random bits."""
        self.drawn += 1
        return self._mt.getrandbits(32)

    def below(self, n: int) -> int:
        """Draw a uniform integer from 0 to `n` - 1, by masked rejection; 1 draws nothing."""
        top = n - 1
        if top == 0:
            return 0
        mask = (1 << top.bit_length()) - 1
        while True:
            value = self.word()
            if top > _MASK32:
                value = (value << 32) | self.word()
            if (value & mask) <= top:
                return value & mask

    def skip(self, words: int) -> None:
        """Go on as if this number of `words` had been drawn."""
        if words:
            self._mt.getrandbits(32 * words)
            self.drawn += words

    def uniform(self, low: float, high: float) -> float:
        """Draw a uniform number from `low` up to, but without `high`, with 53 random bits."""
        a, b = self.word() >> 5, self.word() >> 6
        return low + (high - low) * ((a * 67108864.0 + b) / 9007199254740992.0)

    def choice(self, values: Sequence[T]) -> T:
        """Draw one of `values`, each as likely as the others."""
        return values[self.below(len(values))]

    def uuid4(self) -> uuid.UUID:
        """Draw a random UUID, from four little-endian words."""
        data = b"".join(self.word().to_bytes(4, "little") for _ in range(4))
        return uuid.UUID(bytes=data, version=4)


def _initial_state(seed: int) -> tuple[int, ...]:
    # Knuth's initialisation (MT19937's init_genrand): Python's own seeding differs.
    state = [seed]
    for i in range(1, 624):
        previous = state[-1]
        state.append((1812433253 * (previous ^ (previous >> 30)) + i) & _MASK32)
    return tuple(state)

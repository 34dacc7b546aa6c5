"""Names for experiments that were given none: an adjective and an animal."""

from __future__ import annotations

import os
from collections.abc import Sequence

_ADJECTIVES = """
able amber bold brave bright brisk calm clever cosy curious daring eager early fair famous
fast fine fond free fresh gentle glad golden grand happy hardy honest humble jolly keen
kind lively loyal lucky merry mighty modest neat nimble noble patient polite prime proud
quick quiet rapid ready robust royal sharp shy silent smart smooth snug solid spry steady
sunny sure sweet swift tidy upright vivid warm wise witty young
"""
_ANIMALS = """
ant badger bat bear beaver bee bison boar buzzard camel cat cod crab crane crow deer dingo
dove duck eagle eel elk falcon ferret finch fox frog gecko goat goose gull hare hawk heron
horse ibex jackal jay kiwi koala lark lemur lion llama lynx magpie marten mole moose moth
mouse newt otter owl panda perch pike pony puffin quail rabbit raven robin rook salmon
seal shrew skink sloth snail sparrow squid stoat stork swan tapir tern tiger toad trout
turtle vole walrus wasp whale wolf wombat wren yak zebra
"""

ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())


def pet_name() -> str:
    """A name such as `quiet-otter`."""
    return f"{_pick(ADJECTIVES)}-{_pick(ANIMALS)}"


def _pick(words: Sequence[str]) -> str:
    # Not `random` and not `secrets`: both import more than all of this package.
    return words[int.from_bytes(os.urandom(4), "little") % len(words)]

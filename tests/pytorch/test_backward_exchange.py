"""Gradients that are sent while the backward pass goes on; `test_horovod.py` has the real sums."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from detslurm.pytorch._backward_exchange import BackwardExchange, in_buckets
from detslurm.pytorch._data_parallel import SumsByName

LAYER = 4 * (4 * 4 + 4)  # bytes


class Peer:
    """Another rank, with three times these gradients; and the names of the sums in their order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.flats: list[weakref.ref[torch.Tensor]] = []
        self.has_changed = False

    def begin(self, flat: torch.Tensor, name: str) -> Callable[[], None]:
        self.begun.append(name)
        self.flats.append(weakref.ref(flat))
        theirs = flat * 3 if not name.endswith("changed") else torch.tensor([self.has_changed])

        def wait() -> None:
            flat.add_(theirs)

        return wait


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.fixture
def exchange(net: nn.Sequential, peer: Peer) -> BackwardExchange:
    """One bucket a layer, the last layer's first."""
    sums = SumsByName(peer.begin, LAYER)
    return BackwardExchange("g", list(net.parameters()), sums, 2, compressed=False)


def backward(net: nn.Module) -> list[torch.Tensor]:
    """A backward pass, and the gradients that are there then."""
    net(torch.ones(2, 4)).square().sum().backward()
    return [p.grad.clone() for p in net.parameters()]


def assert_averaged(net: nn.Module, own: list[Any]) -> None:
    for parameter, gradient in zip(net.parameters(), own, strict=True):
        torch.testing.assert_close(parameter.grad, gradient * 2)  # (1 + 3) / 2


def test_each_bucket_is_sent_when_its_gradients_have_come(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer
) -> None:
    """In the order of the backward pass; after the first step nothing else is asked of others."""
    for batch in range(3):
        exchange.begin_batch(steps=True)
        own = backward(net)
        assert peer.begun == ["g.0", "g.1", "g.2"]
        exchange.average()
        assert peer.begun[3:] == ["g.changed"][batch:]
        assert_averaged(net, own)
        assert not any(
            flat() is not None for flat in peer.flats
        )  # no memory is held until the next
        peer.begun.clear()
        net.zero_grad()


def test_only_the_batch_with_a_step_sends(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer
) -> None:
    """What was gathered before counts."""
    exchange.begin_batch(steps=False)
    backward(net)
    exchange.begin_batch(steps=True)
    assert peer.begun == []
    own = backward(net)
    exchange.average()
    assert_averaged(net, own)


def test_a_layer_without_gradients_is_sent_at_the_step(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer
) -> None:
    """Another rank may have some; where none has, none appear."""
    exchange.begin_batch(steps=True)
    net[1](net[0](torch.ones(2, 4))).sum().backward()
    assert peer.begun == ["g.1", "g.2"]
    exchange.average()
    assert peer.begun[2:] == ["g.0", "g.changed"]
    assert net[2].weight.grad is None and net[0].weight.grad is not None


@pytest.mark.parametrize("whose", ["own", "theirs"])
def test_a_trial_that_changes_what_was_sent(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer, whose: str
) -> None:
    """Its first step sends all again, also where another rank's did; later ones wait."""
    exchange.begin_batch(steps=True)
    own = backward(net)
    if whose == "own":
        net.zero_grad()
        own = backward(net)
    peer.has_changed = whose == "theirs"
    exchange.average()
    assert peer.begun == ["g.0", "g.1", "g.2", "g.changed", "g.0", "g.1", "g.2"]
    assert_averaged(net, own)
    peer.begun.clear()
    net.zero_grad()
    exchange.begin_batch(steps=True)
    backward(net)
    own = backward(net)
    assert peer.begun == []
    exchange.average()
    assert_averaged(net, own)


@pytest.mark.parametrize("change", [backward, lambda net: net[0].bias.grad.mul_(2)])
def test_a_later_change_is_an_error(
    net: nn.Sequential, exchange: BackwardExchange, change: Callable[[nn.Module], Any]
) -> None:
    """It says what to do; a wrong average would be silent."""
    for again in (False, True):
        exchange.begin_batch(steps=True)
        backward(net)
        if again:
            change(net)
            with pytest.raises(RuntimeError, match="backward_passes_per_step=2"):
                exchange.average()
        else:
            exchange.average()


def test_a_batch_that_makes_no_step(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer
) -> None:
    """What this rank sent is joined by those that had less to send, and nothing more is sent."""
    exchange.begin_batch(steps=True)
    net[2](torch.ones(2, 4)).sum().backward()
    exchange.begin_batch(steps=True)
    assert peer.begun == ["g.0", "g.1", "g.2"]
    own = backward(net)
    assert len(peer.begun) == 3
    exchange.average()
    assert_averaged(net, own)


def test_what_is_in_a_bucket() -> None:
    """As much as fits, of one type, from the end; what came later is for others to average."""
    one, two, big, other = (torch.zeros(n) for n in (2, 2, 9, 2))
    half = torch.zeros(2, dtype=torch.float16)
    found = in_buckets([other, half, big, two, one], 16)
    assert [[id(p) for p in bucket] for bucket in found] == [
        [id(one), id(two)], [id(big)], [id(half)], [id(other)]
    ]  # fmt: skip


def test_parameters_that_came_later(
    net: nn.Sequential, exchange: BackwardExchange, peer: Peer
) -> None:
    """They are named; a closed exchange hears of none."""
    late = nn.Parameter(torch.zeros(1))
    assert exchange.others([*net.parameters(), late]) == [late]
    exchange.begin_batch(steps=True)
    exchange.close()
    backward(net)
    assert peer.begun == []

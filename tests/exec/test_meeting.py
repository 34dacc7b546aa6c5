"""Where the nodes of a run meet: ports that clash with nobody, addresses of chosen interfaces."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

import pytest

from detslurm.exec.addresses import first_interface, interface_address, interface_of, own_address
from detslurm.exec.ports import candidates, reserve


@pytest.fixture
def run() -> str:
    """A run's name whose first ports are free: jobs of other tests run beside this one."""
    names = (f"{os.getpid()}-{number}" for number in itertools.count())
    return next(name for name in names if all(map(free, candidates(name)[:2])))


def free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def test_a_port_in_use_is_passed_over(run: str) -> None:
    """A server on the first port of the run: the next one is taken."""
    first, second, *_ = candidates(run)
    with socket.create_server(("", first)):
        reserved = reserve(run)
        assert reserved.port == second
        reserved.close()


def test_two_runs_never_get_one_port(run: str) -> None:
    """Two reservations that begin with the same port, both not in use yet."""
    one, other = reserve(run), reserve(run)
    assert [one.port, other.port] == candidates(run)[:2]
    one.close()
    with contextlib.closing(reserve(run)) as again:
        assert again.port == one.port
    other.close()


def test_signs_of_strangers_keep_no_port(run: str) -> None:
    """Anybody can take the names of the signs: they are an advice, and no door."""
    with contextlib.ExitStack() as strangers:
        for port in set(candidates(run)):
            sign = strangers.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError):  # of a job of another test
                sign.bind(f"\0detslurm-port-{port}")
        with contextlib.closing(reserve(run)) as reserved:
            assert reserved.port in candidates(run)


def test_the_run_s_server_gets_the_reserved_port(run: str) -> None:
    """A server that asks for exactly this port, as torchrun's does."""
    with (
        contextlib.closing(reserve(run)) as reserved,
        socket.create_server(("", reserved.port)) as server,
    ):
        server.listen()


def test_the_address_of_an_interface() -> None:
    """Of several names the first that the node has; a wrong one is told what there is."""
    assert first_interface("ib99, lo") == "lo"
    assert interface_address("ib99,lo") == "127.0.0.1"
    assert own_address(["a", "b"], 1, "lo") == "127.0.0.1"
    with pytest.raises(OSError, match=r"no network interface ib99 .* it has .*lo"):
        own_address(["a", "b"], 0, "ib99")
    assert own_address(["a"], 0, "ib99") == "127.0.0.1"


def test_the_variable_goes_before_the_configuration() -> None:
    """DET_INTER_NODE_NETWORK_INTERFACE is Determined's name for it."""
    config = {"slurm": {"network_interface": "ib0"}}
    assert interface_of(config, {}) == "ib0"
    assert interface_of(config, {"DET_INTER_NODE_NETWORK_INTERFACE": "eth1"}) == "eth1"
    assert interface_of({}, {}) is None

"""Where the nodes of a run meet: ports that clash with nobody, addresses of chosen interfaces."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detslurm._base import addresses
from detslurm._base.addresses import (
    addresses_of,
    first_interface,
    in_url,
    interface_address,
    interface_with,
    own_address,
    peer_address,
)
from detslurm.config.run_config import RunConfig
from detslurm.exec import ports
from detslurm.exec.environment import interface_of
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


def test_ports_that_are_all_taken(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow from the job's id: who listens at all of them keeps no run from meeting."""
    first = candidates(run)[0]
    monkeypatch.setattr(ports, "candidates", lambda name: [first])
    with (
        socket.create_server(("", first)),
        contextlib.closing(reserve(run)) as reserved,
        socket.create_server(("", reserved.port)),
    ):
        assert reserved.port != first


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


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names lead to here, in place of /etc/hosts and of name servers."""
    known: dict[str, list[str]] = {}

    def look_up(name: str, *_: object, **__: object) -> list[Any]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[name]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "gethostname", lambda: "host")
    return known


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Target -> the own address towards it, in place of this machine's routes."""
    routes: dict[str, str] = {}
    monkeypatch.setattr(addresses, "_is_own", lambda address: address in routes.values())
    monkeypatch.setattr(
        addresses, "_sources", lambda targets: [routes[t] for t in targets if t in routes]
    )
    monkeypatch.setattr(addresses, "_of_interfaces", lambda: ["10.9.9.9"])
    return routes


def test_a_name_that_leads_to_this_machine_alone(
    hosts: dict[str, list[str]], network: dict[str, str]
) -> None:
    """As 127.0.1.1 in /etc/hosts: then the way to the others tells, then a route, an interface."""
    hosts |= {"a": ["127.0.1.1", "::1"], "host": ["127.0.1.1"], "b": ["10.0.0.2"]}
    network |= {"10.0.0.2": "10.0.0.1", "192.0.2.1": "172.16.0.1"}
    assert own_address(["a", "b"], 0) == "10.0.0.1"
    del hosts["b"]
    assert own_address(["a", "b"], 0) == "172.16.0.1"
    network.clear()
    assert own_address(["a", "b"], 0) == "10.9.9.9"


def test_the_name_comes_first_where_it_leads_here(
    hosts: dict[str, list[str]], network: dict[str, str]
) -> None:
    """Of several addresses one that this node has; the node's name before the host's."""
    hosts |= {"a": ["10.7.0.1", "10.0.0.1"], "host": ["10.1.0.1"], "b": ["10.1.0.2"]}
    network |= {"10.1.0.2": "10.1.0.1", "10.0.0.2": "10.0.0.1"}
    assert own_address(["a", "b"], 0) == "10.0.0.1"
    assert own_address(["x", "b"], 0) == "10.1.0.1"
    network.clear()  # an address that this node does not have may still lead here
    assert own_address(["a", "b"], 0) == "10.7.0.1"


def test_names_with_ipv6_alone(hosts: dict[str, list[str]], network: dict[str, str]) -> None:
    """Not an address that counts on one link only."""
    hosts |= {"a": ["fe80::1%eth0", "2001:db8::a"], "b": ["2001:db8::b", "10.0.0.2"], "c": ["::1"]}
    assert own_address(["a", "b"], 0) == "2001:db8::a"
    assert addresses_of("b") == ["10.0.0.2", "2001:db8::b"]
    assert [peer_address(name) for name in "abcd"] == ["2001:db8::a", "10.0.0.2", "c", "d"]
    assert in_url("2001:db8::a") == "[2001:db8::a]"


def test_the_addresses_of_this_machine() -> None:
    """What routes and interfaces tell is an address that this machine has."""
    routed = addresses._sources(["192.0.2.1", "2001:db8::1"])
    assert all(map(addresses._is_own, [*routed, *addresses._of_interfaces()]))
    assert addresses._sources(["127.0.0.1"]) == []
    assert not addresses._is_own("203.0.113.77")
    assert interface_with("127.0.0.1") == "lo"
    assert interface_with("203.0.113.77") is None


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs a network apart")
def test_an_interface_is_found_by_each_of_its_addresses(tmp_path: Path) -> None:
    """A static one beside one that a router gave, a second one of IPv4, IPv6 beside IPv4."""
    own = {
        "d0": ["10.9.0.1/24", "10.9.0.2/24", "10.8.0.1/24 label d0:1", "2001:db8::1/64"],
        "d1": ["2001:db8:1::1/64", "2001:db8:1::2/64"],
    }
    commands = tmp_path / "commands"
    with commands.open("w") as file:
        for name, addresses in own.items():
            print(f"link add {name} type bridge\nlink set {name} up", file=file)
            for address in addresses:
                print(f"address add dev {name} {address}", file=file)
        print("link set lo up\naddress add dev lo 10.6.0.1/32", file=file)
    apart = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]
    script = 'PATH=$PATH:/usr/sbin:/sbin; ip -batch "$0" && echo made && exec "$@"'
    code = "import sys; from detslurm._base.addresses import interface_with as f;"
    code += "print(*map(f, sys.argv[1:]))"
    asked = [one.partition("/")[0] for addresses in own.values() for one in addresses]
    asked += ["10.7.0.1", "10.6.0.1"]
    argv = [*apart, script, str(commands), sys.executable, "-c", code, *asked]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("made"):
        pytest.skip("no network can be made apart from this machine's")
    assert done.stdout.split()[1:] == ["d0"] * 4 + ["d1"] * 2 + ["None"] * 2


def test_the_variable_goes_before_the_configuration() -> None:
    """DET_INTER_NODE_NETWORK_INTERFACE is Determined's name for it."""
    config = RunConfig.of({"slurm": {"network_interface": "ib0"}})
    assert interface_of(config, {}) == "ib0"
    assert interface_of(config, {"DET_INTER_NODE_NETWORK_INTERFACE": "eth1"}) == "eth1"
    assert interface_of(RunConfig(), {}) is None

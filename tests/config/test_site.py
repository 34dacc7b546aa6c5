"""Site profiles and where the store is."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.config import ConfigErrors, SiteProfile, load_experiment, load_site, store_root

PROFILE = """\
root: ~/scratch
partition: main
slot_type: cpu
gres_supported: false
tres_supported: false
submit_from_jobs: false
setup: [source /etc/profile]
time: 4:00:00
checkpoint_storage: {type: directory, container_path: /ckpt}
partitions:
  main: {time: 1-00, slots_per_node: 8}
  low: {preempt_mode: REQUEUE, grace_time: 60, defaults: {max_restarts: 9}}
defaults:
  environment: {environment_variables: [A=1]}
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DETSLURM_ROOT", "DETSLURM_SITE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("detslurm.config.site.SYSTEM_PROFILE", tmp_path / "etc" / "site.yaml")


def test_a_profile_is_read(tmp_path: Path) -> None:
    """Every part has its type; times are canonical; forms are those of an experiment."""
    path = tmp_path / "site.yaml"
    path.write_text(PROFILE)
    site = load_site(path)
    assert site.source == str(path)
    assert (site.slot_type, site.gres_supported, site.time) == ("cpu", False, "0-04:00:00")
    assert (site.submit_from_jobs, SiteProfile().submit_from_jobs) == (False, True)
    assert site.partitions["main"].time == "1-00:00:00"
    assert site.partitions["low"].grace_time == 60
    assert site.defaults["environment"]["environment_variables"]["rocm"] == ("A=1",)
    assert store_root(site) == tmp_path / "scratch"


@pytest.mark.parametrize(
    "text, fragments",
    [
        ("energy: {co2_g_per_kwh: -1}\n", (":1:25: energy.co2_g_per_kwh",)),
        ("energy: {pue: 0.9}\n", (":1:15: energy.pue",)),
        ("energy: {co2: 380}\n", (":1:10: energy.co2", '"co2_g_per_kwh"')),
        ("partion: x\n", (":1:1: partion", 'did you mean "partition"')),
        ("root: here\n", (":1:7: root", "an absolute path")),
        ("partitions:\n  low: {tme: 3}\n", (":2:9: partitions.low.tme", '"time"')),
        ("defaults: {max_restart: 3}\n", (":1:12: defaults.max_restart", '"max_restarts"')),
        ("partitions: {low: {defaults: {max_restarts: x}}}\n", ("partitions.low.defaults.max",)),
        ("checkpoint_storage: {type: s3}\n", ("checkpoint_storage.bucket", "required")),
        ("gres_supported: yes\n", (":1:17:", "write true")),
        ("time: soon\n", (":1:7: time", "minutes")),
        ("- a\n", (":1:1:", "a mapping")),
    ],
)
def test_a_bent_profile_is_refused_with_places(
    tmp_path: Path, text: str, fragments: tuple[str, ...]
) -> None:
    """Errors in a profile are as good as those in an experiment."""
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        load_site(path)
    assert all(part in str(caught.value) for part in fragments), str(caught.value)


def test_profiles_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$DETSLURM_SITE, else the user's own, else the system's, else an empty one."""

    def write(path: Path, account: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"account: {account}\n")
        return path

    assert load_site() == SiteProfile()
    write(tmp_path / "etc" / "site.yaml", "system")
    assert load_site().account == "system"
    write(tmp_path / ".config" / "detslurm" / "site.yaml", "user")
    assert load_site().account == "user"
    monkeypatch.setenv("DETSLURM_SITE", str(write(tmp_path / "named.yaml", "named")))
    assert load_site().account == "named"
    monkeypatch.setenv("DETSLURM_SITE", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigErrors, match=r"none\.yaml"):
        load_site()


def test_the_root_is_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$DETSLURM_ROOT, else the profile's root, else ~/detslurm."""
    assert store_root() == tmp_path / "detslurm"
    checkout = tmp_path / "detslurm" / ".git"
    checkout.mkdir(parents=True)
    assert store_root() == tmp_path / "detslurm-store"  # `git clean` would delete experiments
    (tmp_path / "detslurm-store").mkdir()
    checkout.rmdir()
    assert store_root() == tmp_path / "detslurm-store"  # the checkout has gone, experiments stay
    (tmp_path / "detslurm" / "ledger").mkdir()
    assert store_root() == tmp_path / "detslurm"
    monkeypatch.setenv("GROUP", "/scratch/g")
    assert store_root(SiteProfile(root="$GROUP/me")) == Path("/scratch/g/me")
    with pytest.raises(ConfigErrors, match="isn't set"):
        store_root(SiteProfile(root="$NOT_SET_ANYWHERE/me"))
    monkeypatch.setenv("DETSLURM_ROOT", "/elsewhere/x/..")
    assert store_root(SiteProfile(root="/a")) == Path("/elsewhere")


def test_an_empty_profile_adds_nothing() -> None:
    """Without a profile no layer comes between the user and the defaults."""
    assert SiteProfile().layers("main") == []


def test_the_partition_of_the_shell_counts_where_no_other_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What sbatch would read: the plan, and what the site has set for it, are of that partition."""
    monkeypatch.setenv("SBATCH_PARTITION", "low")
    given = {"entrypoint": "a", "searcher": {"name": "single", "metric": "x"}}
    (profile := tmp_path / "site.yaml").write_text("partitions: {low: {qos: cheap}}\n")
    site = load_site(profile)
    config = load_experiment(given, site=site).config
    assert (config.resources.resource_pool, config.slurm.qos) == ("low", "cheap")
    profile.write_text("partition: main\n")
    assert load_experiment(given, site=load_site(profile)).config.resources.resource_pool == "main"
    named = {**given, "resources": {"resource_pool": "high"}}
    config = load_experiment(named, site=site).config
    assert (config.resources.resource_pool, config.slurm.qos) == ("high", None)

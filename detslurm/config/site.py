"""Site profiles: which one applies here, and where it puts the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base import contract
from detslurm.config.errors import ConfigErrors, ConfigProblem

if TYPE_CHECKING:
    from detslurm.config.schema.site import SiteProfile

SYSTEM_PROFILE = Path("/etc/detslurm/site.yaml")


def profile_path() -> Path | None:
    """The profile that applies here: $DETSLURM_SITE, the user's own, the system's, or none."""
    if named := os.environ.get(contract.SITE):
        return Path(named)
    candidates = [SYSTEM_PROFILE]
    if folder := config_folder():
        candidates.insert(0, folder / "site.yaml")
    return next((path for path in candidates if path.exists()), None)


def config_folder() -> Path | None:
    """The user's own settings: $XDG_CONFIG_HOME/detslurm, else ~/.config/detslurm; None without a
    home directory."""
    home = _home()
    if home is None:
        return None
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "detslurm"


def load_site(path: Path | str | None = None) -> SiteProfile:
    """The profile at `path`, or the profile that applies here, or an empty profile."""
    found = Path(path) if path is not None else profile_path()
    if found is None:
        from detslurm.config.schema.site import SiteProfile  # lists ask for the path alone

        return SiteProfile()
    from detslurm.config.site_loading import read_site

    return read_site(found)


def store_root(site: SiteProfile | None = None) -> Path:
    """Where the store is: $DETSLURM_ROOT, else the site profile's root, else ~/detslurm.

    Where ~/detslurm is a checkout of this project it is ~/detslurm-store, which `git clean` spares.
    """
    named = os.environ.get(contract.ROOT)
    if not named:
        site = load_site() if site is None else site
        named = site.root or _usual_root()
    if named == "~" or named.startswith("~/"):
        home = _home()
        if home is None:
            message = f"there is no home directory to keep the store in; set {contract.ROOT}"
            raise ConfigErrors([ConfigProblem(contract.ROOT, None, None, "", message)])
        named = str(home) + named[1:]
    path = os.path.expandvars(named)
    if path.startswith("$"):
        message = f"the store's root {path} names a variable that isn't set"
        source = site.source if site and not os.environ.get(contract.ROOT) else contract.ROOT
        raise ConfigErrors([ConfigProblem(source, None, None, "root", message)])
    return Path(os.path.abspath(path))  # noqa: PTH100


def _usual_root() -> str:
    usual = f"{_home()}/detslurm"
    # Unlike Path.exists(), these are false where access is denied.
    has_store = os.path.exists(f"{usual}/ledger")  # noqa: PTH110
    is_checkout = os.path.exists(f"{usual}/.git")  # noqa: PTH110
    # The checkout may have gone since: experiments are looked for where they were kept.
    moved = is_checkout or os.path.exists(f"{usual}-store")  # noqa: PTH110
    return "~/detslurm-store" if moved and not has_store else "~/detslurm"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None

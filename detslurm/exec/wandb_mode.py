"""W&B's mode in a job: offline without a network or an account, unless the user chose otherwise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

_HOST = "api.wandb.ai"
_CHOICES = ("WANDB_MODE", "WANDB_DISABLED")
_ACCOUNTS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
_PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
# Resolving a name may hang for long where there is no network.
_SECONDS = 3.0


def wandb_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that W&B needs beyond those of the environment."""
    home = Path(env.get("HOME") or "~").expanduser()
    folder = Path(env.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb")
    settings = _read(folder / "settings")
    if any(env.get(name) for name in _CHOICES) or _setting(settings, "mode"):
        return {}
    url = env.get("WANDB_BASE_URL") or _setting(settings, "base_url") or f"https://{_HOST}"
    host, _, port = url.partition("://")[2].partition("/")[0].partition(":")
    if not (any(env.get(name) for name in _ACCOUNTS) or _has_login(env, home, host)):
        return {"WANDB_MODE": "offline"}
    if any(env.get(name) for name in _PROXIES):
        return {}  # the proxy knows
    number = int(port) if port.isdigit() else 443 if url.startswith("https") else 80
    return {} if is_reachable(host, number) else {"WANDB_MODE": "offline"}


def _has_login(env: Mapping[str, str], home: Path, host: str) -> bool:
    files = [Path(env["NETRC"])] if env.get("NETRC") else [home / ".netrc", home / "_netrc"]
    return any(host in _read(path) for path in files)


def _setting(text: str, name: str) -> str:
    pairs = (line.partition("=") for line in text.splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def is_reachable(host: str, port: int) -> bool:
    """Whether a connection can be made within a few seconds."""
    found: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), _SECONDS).close()
            found.append(True)
        except OSError:
            pass

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return bool(found)

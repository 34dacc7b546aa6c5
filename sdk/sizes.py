"""Sizes for people."""

from __future__ import annotations


def human_size(size: float) -> str:
    """A number of bytes for people: 12.3KB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1024 or unit == "TB":
            break
        size /= 1024
    return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"

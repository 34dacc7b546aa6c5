"""Turn what code reports as artifacts into the bytes of small files."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from detslurm.core._metrics import plain
from detslurm.store.artifacts import Artifact
from detslurm.store.frame import encode_json

ArtifactKind = Literal["image", "table", "histogram", "confusion_matrix"]

_KINDS: Final = ("image", "table", "histogram", "confusion_matrix")
_BEGINS: Final = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff"}
_COLOURS: Final = {1: 0, 3: 2, 4: 6}  # PNG's numbers for grey, RGB and RGBA
_WIDEST: Final = 512  # pixels
_BINS: Final = 30
_MOST_ROWS, _MOST_CLASSES, _LONGEST_NAME = 1000, 100, 200


def artifact_of(
    name: str,
    steps: int,
    value: Any,
    kind: ArtifactKind | None = None,
    labels: Sequence[str] | None = None,
) -> Artifact:
    """The artifact of a value. Raises as `TrainContext.report_artifact`."""
    if not isinstance(name, str):
        raise TypeError(f"the name of an artifact is a text, not {name!r}")
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(
            f"the name of an artifact has 1 to {_LONGEST_NAME} characters: {name!r:.80}"
        )
    if kind is not None and kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    found, media, data = _content(value, kind, labels)
    return Artifact(name=name, steps=steps, kind=found, media=media, data=data, time=time.time())


def _content(
    value: Any, kind: ArtifactKind | None, labels: Sequence[str] | None
) -> tuple[str, str, bytes]:
    if kind == "histogram":
        return kind, "json", encode_json(_histogram(value))
    if kind == "confusion_matrix":
        return kind, "json", encode_json(_confusion_matrix(value, labels))
    if isinstance(value, str | os.PathLike):
        return "image", *_file(Path(value))
    if hasattr(value, "savefig"):
        buffer = io.BytesIO()
        value.savefig(buffer, format="png", dpi=100)
        return "image", "png", buffer.getvalue()
    if kind == "table" or isinstance(value, Mapping) or _is_rows(value):
        return "table", "json", encode_json(_table(value))
    if kind == "image" or hasattr(value, "shape"):
        return "image", "png", png(value)
    raise TypeError(
        f"an artifact is a path, a figure, an array or a table, not a {type(value).__name__}"
    )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)


def _file(path: Path) -> tuple[str, bytes]:
    data = path.read_bytes()
    for media, begin in _BEGINS.items():
        if data.startswith(begin):
            return media, data
    if path.suffix.lower() == ".svg" and b"<svg" in data:
        return "svg", data
    raise ValueError(f"{path} is no PNG, JPEG or SVG")


def _array(value: Any) -> Any:
    import numpy as np

    detach = getattr(value, "detach", None)  # torch's tensors, which may be on a GPU
    return np.asarray(detach().cpu().float() if callable(detach) else value)


def png(value: Any) -> bytes:
    """An image as PNG, every so many pixels of an image wider or higher than 512."""
    import numpy as np

    pixels = _array(value)
    floats = pixels.dtype.kind == "f" and float(np.nanmax(pixels, initial=0)) <= 1.0
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim == 3 and pixels.shape[2] not in _COLOURS and pixels.shape[0] in _COLOURS:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[2] not in _COLOURS or 0 in pixels.shape:
        raise ValueError(f"an array of the shape {pixels.shape} is no image")
    apart = -(-max(pixels.shape[:2]) // _WIDEST)
    scaled = np.nan_to_num(pixels[::apart, ::apart].astype(np.float64)) * (255 if floats else 1)
    small = scaled.clip(0, 255).round().astype(np.uint8)
    height, width, channels = small.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: none
    lines[:, 1:] = small.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    return _BEGINS["png"] + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _histogram(value: Any) -> dict[str, Any]:
    import numpy as np

    numbers = _array(value).astype(np.float64).ravel()
    counts, edges = np.histogram(numbers[np.isfinite(numbers)], bins=_BINS)
    return {"counts": counts.tolist(), "edges": edges.tolist()}


def _confusion_matrix(value: Any, labels: Sequence[str] | None) -> dict[str, Any]:
    counts = _array(value)
    size = len(counts) if counts.ndim else 0
    names = [str(label) for label in labels] if labels is not None else [*map(str, range(size))]
    if counts.shape != (len(names), len(names)) or not 0 < size <= _MOST_CLASSES:
        raise ValueError(
            f"a confusion matrix is square, of up to {_MOST_CLASSES} classes, with a label for"
            f" each: not {counts.shape} with {len(names)} labels"
        )
    return {"labels": names, "counts": counts.tolist()}


def _table(value: Any) -> dict[str, Any]:
    """Columns and the first rows; more of them would not be read on a page."""
    if isinstance(value, Mapping):
        columns = plain({str(name): list(column) for name, column in value.items()})
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
    elif _is_rows(value):
        columns = dict.fromkeys(str(name) for row in value for name in row)
        rows = [[plain(row).get(name) for name in columns] for row in value[:_MOST_ROWS]]
    else:
        raise TypeError("a table is a list of mappings, or a mapping of columns")
    return {"columns": [*columns], "rows": rows[:_MOST_ROWS]}

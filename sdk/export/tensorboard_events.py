"""TensorBoard: a directory with an event file for each trial."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from detslurm._base.tensorboard_tags import tensorboard_tag
from detslurm.sdk.export.content import ExportWriter, Rows, TrialContent, reported_at, scalars
from detslurm.store.artifacts import Artifact


class TensorboardWriter(ExportWriter):
    """Writes event files, readable with `tensorboard --logdir` or by its plugins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_trial(self, trial: TrialContent, rows: Rows, restarted: bool) -> None:
        """Put an event file in the place of the earlier file."""
        place = self._folder / trial.experiment.folder / f"trial-{trial.id}"
        place.mkdir(parents=True, exist_ok=True)
        number = 1
        for earlier in place.glob("events.out.tfevents.*"):
            number = max(number, int(earlier.name.split(".")[3]) + 1)
            earlier.unlink()
        # A TensorBoard that is running reads a new name; it counts on a time in the name.
        path = place / f"events.out.tfevents.{number:010d}.detslurm"
        artifacts = map(_artifact, trial.artifacts())
        ends = (_session_start(trial), _session_end(trial))
        _write(path, chain(ends[0], _events(trial, rows), artifacts, ends[1]))


def _write(path: Path, events: Iterable[Any]) -> None:
    with path.open("wb") as file:
        records = RecordWriter(file)
        for event in (Event(wall_time=0, file_version="brain.Event:2"), *events):
            records.write(event.SerializeToString())
        records.flush()
        os.fsync(file.fileno())


def _events(trial: TrialContent, rows: Rows) -> Iterator[Any]:
    for row in rows:
        points = [
            Summary.Value(
                tag=tensorboard_tag(row.group, tag.removeprefix(f"{row.group}/")),
                simple_value=value,
            )
            for tag, value in scalars(row)
        ]
        if points:
            when = reported_at(trial, row)
            yield Event(wall_time=when, step=row.steps, summary=Summary(value=points))


def _artifact(one: Artifact) -> Any:
    """An image, a histogram, or text: a table, and the source of SVG, which has no image there."""
    if one.media in ("png", "jpeg"):
        image = Summary.Image(encoded_image_string=one.data)
        value = Summary.Value(tag=one.name, image=image)
    elif one.kind == "histogram":
        found = json.loads(one.data)
        edges, counts = found["edges"], found["counts"]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        pairs = list(zip(counts, middles, strict=True))
        histogram = HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=sum(counts),
            sum=sum(count * middle for count, middle in pairs),
            sum_squares=sum(count * middle**2 for count, middle in pairs),
            bucket_limit=edges[1:],
            bucket=counts,
        )
        value = Summary.Value(tag=one.name, histo=histogram)
    else:
        value = _text(one.name, one.data)
    return Event(wall_time=one.time, step=one.steps, summary=Summary(value=[value]))


def _text(name: str, data: bytes) -> Any:
    shown = b"    " + data.replace(b"\n", b"\n    ")  # Markdown's form of plain text
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[shown], tensor_shape=shape)
    about = create_summary_metadata(display_name=name, description="")
    return Summary.Value(tag=name, metadata=about, tensor=tensor)


def _session_start(trial: TrialContent) -> Iterator[Any]:
    """The page of hyperparameters."""
    started = trial.row.started or 0.0
    values = {
        name: value if isinstance(value, (int, float)) else str(value)
        for name, value in trial.hparams.items()
    }
    summary = hparams_pb(values, trial_id=trial.run_id, start_time_secs=started)
    yield Event(wall_time=started, summary=summary)


def _session_end(trial: TrialContent) -> Iterator[Any]:
    if not trial.over:
        return
    ended = trial.row.ended or 0.0
    good = trial.row.state == "COMPLETED"
    status = api_pb2.STATUS_SUCCESS if good else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended)
    data = plugin_data_pb2.HParamsPluginData(
        version=metadata.PLUGIN_DATA_VERSION, session_end_info=info
    )
    about = metadata.create_summary_metadata(data)
    tag = metadata.SESSION_END_INFO_TAG
    value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    yield Event(wall_time=ended, summary=Summary(value=[value]))

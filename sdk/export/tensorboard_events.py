"""TensorBoard: a directory of event files for each trial; each export adds one with what is new."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from detslurm._tensorboard_tags import tensorboard_tag
from detslurm.sdk.export.content import (
    ExperimentContent,
    TrialContent,
    reported_at,
    scalars,
)
from detslurm.sdk.export.journal import RunChange
from detslurm.store import MetricRow

_ENDED: Final = ".ended.detslurm"
"""How the name of an event file ends that says how its trial has ended."""


class TensorboardWriter:
    """Writes event files, readable with `tensorboard --logdir` or by its plugins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_trial(
        self, experiment: ExperimentContent, trial: TrialContent, change: RunChange
    ) -> None:
        """Add an event file, or put one in the place of all."""
        place = self._folder / experiment.folder / f"trial-{trial.id}"
        place.mkdir(parents=True, exist_ok=True)
        earlier = sorted(place.glob("events.out.tfevents.*"))
        rows = change.rows
        # Of several ends TensorBoard shows the first: a trial that goes on is written anew.
        if change.kind == "rewritten" or any(file.name.endswith(_ENDED) for file in earlier):
            for file in earlier:
                file.unlink()
            earlier, rows = [], change.all_rows
        # TensorBoard reads the files of a directory by name, and counts on the time in it.
        name = f"events.out.tfevents.{len(earlier) + 1:010d}{_ENDED if trial.over else '.detslurm'}"
        first = _session_start(trial) if not earlier else ()
        _write(place / name, [*first, *_events(trial, rows), *_session_end(trial)])


def _write(path: Path, events: Iterable[Any]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        records = RecordWriter(file)
        for event in (Event(wall_time=0, file_version="brain.Event:2"), *events):
            records.write(event.SerializeToString())
        records.flush()
        os.fsync(file.fileno())


def _events(trial: TrialContent, rows: Iterable[MetricRow]) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

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


def _session_start(trial: TrialContent) -> Iterator[Any]:
    """What the page of hyperparameters shows."""
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    started = trial.row.started or 0.0
    info = plugin_data_pb2.SessionStartInfo(group_name=trial.run_id, start_time_secs=started)
    for name, value in trial.hparams.items():
        field = info.hparams[name]
        if isinstance(value, bool):
            field.bool_value = value
        elif isinstance(value, (int, float)):
            field.number_value = value
        else:
            field.string_value = str(value)
    yield _session(metadata.SESSION_START_INFO_TAG, started, session_start_info=info)


def _session_end(trial: TrialContent) -> Iterator[Any]:
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    if not trial.over:
        return
    ended = trial.row.ended or 0.0
    good = trial.row.state == "COMPLETED"
    status = api_pb2.STATUS_SUCCESS if good else api_pb2.STATUS_FAILURE
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended)
    yield _session(metadata.SESSION_END_INFO_TAG, ended, session_end_info=info)


def _session(tag: str, when: float, **info: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **info)
    about = metadata.create_summary_metadata(data)
    value = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return Event(wall_time=when, summary=Summary(value=[value]))

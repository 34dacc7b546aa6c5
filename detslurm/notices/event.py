"""The content of a notice: the facts of one event, as text and as data."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm._base.quantities import amount

if TYPE_CHECKING:
    from detslurm.store import ExperimentView


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of an experiment, with the experiment as it was then.

    The `trigger` is its kind, "TEST" for a trial message. The `key` differs from that of all other
    events of the experiment, and is a part of a file's name. Times are in seconds since 1970;
    `duration` has the seconds from the first run to the end, or to the event. `names` are the
    notices that the configuration names, and `policy` is the log policy that matched, in `trial` on
    `node`.
    """

    trigger: str
    key: str
    time: float
    experiment: int = 0
    name: str = ""
    owner: str = ""
    workspace: str = ""
    project: str = ""
    state: str = ""
    duration: float | None = None
    pool: str | None = None
    slots: int | None = None
    trials: int = 0
    metric: str | None = None
    best_value: float | None = None
    best_trial: int | None = None
    names: tuple[str, ...] = ()
    reason: str | None = None
    trial: int | None = None
    policy: str | None = None
    node: str | None = None
    title: str | None = None
    description: str | None = None
    level: str | None = None

    @property
    def headline(self) -> str:
        """The event in a line: the title of an alert may have several."""
        return " ".join(self._headline().split())

    def _headline(self) -> str:
        about = f"experiment {self.experiment} ({self.name})" if self.experiment else "detslurm"
        match self.trigger:
            case "CUSTOM":
                return f"{self.title or 'alert'}: {about}"
            case "TASKLOG":
                return f"log policy {self.policy!r} matched: {about}"
            case "TEST":
                return f"{about}: a trial message"
        return f"{about} {'failed' if self.trigger == 'ERROR' else self.trigger.lower()}"

    @property
    def text(self) -> str:
        """The details, a line each."""
        lines = [self.description, self.reason]
        if self.trial is not None:
            lines.append(f"trial {self.trial}" + (f" on {self.node}" if self.node else ""))
        if self.best_value is not None:
            lines.append(f"best {self.metric}: {self.best_value:.6g} (trial {self.best_trial})")
        if self.duration is not None:
            lines.append(f"after {amount(self.duration / 3600)} h, {self.trials} trial(s)")
        return "\n".join(line for line in lines if line) or self.headline


def event_of(view: ExperimentView, trigger: str, key: str, **more: Any) -> Event:
    """An event of an experiment as it is now; `more` are fields that are not the experiment's."""
    now = time.time()
    began = view.started
    return Event(
        trigger=trigger,
        key=key,
        time=now,
        experiment=view.id,
        name=view.name,
        owner=view.owner,
        workspace=view.workspace,
        project=view.project,
        state=view.state,
        duration=None if began is None else max((view.ended or now) - began, 0.0),
        pool=view.pool,
        slots=view.slots,
        trials=view.trial_count,
        metric=view.metric,
        best_value=view.best_value,
        best_trial=view.best_trial,
        **more,
    )


_TYPES = {"CUSTOM": "CUSTOM", "TASKLOG": "TASK_LOG", "TEST": "TEST"}


def determined_body(event: Event) -> dict[str, Any]:
    """The body of the default kind, with the fields of Determined's webhooks, and some more."""
    experiment = {
        "id": event.experiment,
        "name": event.name,
        "state": event.state,
        "duration": event.duration,
        "resource_pool": event.pool,
        "slots_per_trial": event.slots,
        "workspace": event.workspace,
        "project": event.project,
        "owner": event.owner,
        "trials": event.trials,
        "best_trial": event.best_trial,
        "best_metric": event.best_value,
        "reason": event.reason,
    }
    data: dict[str, Any] = {"experiment": experiment}
    condition: dict[str, Any] = {"state": event.trigger}
    if event.trigger == "TASKLOG":
        condition = {"regex": event.policy}
        data["task_log"] = {"trial_id": event.trial, "node_name": event.node}
    elif event.trigger == "CUSTOM":
        condition = {}
        custom = {"title": event.title, "description": event.description, "level": event.level}
        data["custom_data"] = {**custom, "trial_id": event.trial}
    return {
        "event_id": f"{event.experiment}.{event.key}",
        "event_type": _TYPES.get(event.trigger, "EXPERIMENT_STATE_CHANGE"),
        "timestamp": int(event.time),
        "condition": condition,
        "event_data": data,
    }

"""The schema of the user's definitions of notices."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from detslurm.config.fields import SECRET, Section, Text, must, one_line

Trigger = Literal["COMPLETED", "ERROR", "PAUSED", "TASKLOG", "CUSTOM"]
USUAL: tuple[Trigger, ...] = ("COMPLETED", "ERROR", "PAUSED", "CUSTOM")


def _web(value: str) -> str | None:
    try:
        parts = urlsplit(value)
    except ValueError:
        return ""
    is_plain = value.isascii() and value.isprintable() and not {" ", "@"} & {*value}
    return None if parts.scheme in ("https", "http") and parts.hostname and is_plain else ""


def _topic(value: str) -> str | None:
    return "" if _web(value) == "" or not urlsplit(value).path.strip("/") else None


Url = Annotated[str, SECRET, must(_web, "a URL that begins with https:// or http://, without @")]
Topic = Annotated[str, SECRET, must(_topic, "a URL with a topic, as https://ntfy.sh/my-topic")]
Line = Annotated[Text, must(one_line)]


class NoticeDefinition(Section, frozen=True, kw_only=True):
    """The common keys: `triggers`, whether it is for `all` experiments or only for those that name
    it, the log `policies` that it is for (all by default), and whether jobs may send it."""

    triggers: tuple[Trigger, ...] = USUAL
    mode: Literal["all", "named"] = "all"
    policies: tuple[str, ...] = ()
    from_jobs: bool = True


class JsonNotice(NoticeDefinition, frozen=True, kw_only=True, tag_field="kind", tag="json"):
    """A body as Determined's webhooks have it, posted to a URL."""

    url: Url
    token: Annotated[Line | None, SECRET] = None


class SlackNotice(NoticeDefinition, frozen=True, kw_only=True, tag_field="kind", tag="slack"):
    """A message through an incoming webhook of Slack."""

    url: Url


class NtfyNotice(NoticeDefinition, frozen=True, kw_only=True, tag_field="kind", tag="ntfy"):
    """A message to a topic of an ntfy server."""

    url: Topic
    token: Annotated[Line | None, SECRET] = None


class MailNotice(NoticeDefinition, frozen=True, kw_only=True, tag_field="kind", tag="mail"):
    """A mail by `sendmail` or `mail`; jobs leave it waiting, as few compute nodes deliver any."""

    to: Line
    from_jobs: bool = False


class CommandNotice(NoticeDefinition, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """A program, which gets the facts as JSON on its input and in variables."""

    command: Annotated[tuple[str, ...], SECRET, Meta(min_length=1)]


AnyNotice = JsonNotice | SlackNotice | NtfyNotice | MailNotice | CommandNotice

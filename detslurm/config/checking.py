"""Hold nodes against the schema and collect every problem, with its place.

The schema is what msgspec knows of the structs in `detslurm.config.schema`; this walks a tree of
nodes along it. Null is the same as absent. An incomplete configuration (a template, a part of a
site profile) is checked without asking for required fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect as schema

from detslurm.config import describe
from detslurm.config.describe import type_info
from detslurm.config.errors import ConfigProblem, Noted, Position
from detslurm.config.key_suggestions import recommended, unknown_key_hint
from detslurm.config.rules import broken_rules
from detslurm.config.schema.hyperparameters import Hyperparameters, Range
from detslurm.config.schema.searcher import Custom
from detslurm.config.type_match import in_bounds, matches
from detslurm.config.yaml_node import YamlNode, key_path, val_nodes

Extra = Mapping[str, Any]
Owners = Mapping[str, list[str]]
_NO_EXTRA: Extra = {}
_NO_OWNERS: Owners = {}


class Checker:
    """One walk over one tree; afterwards `problems`, `ignored` and `deprecated` are filled."""

    def __init__(self, complete: bool) -> None:
        self._complete = complete
        self.problems: list[ConfigProblem] = []
        self.ignored: list[Noted] = []
        self.deprecated: list[Noted] = []

    def check(self, node: YamlNode, kind: Any, path: str = "") -> Checker:
        """Check `node` as a `kind` (a struct or any other type)."""
        self._value(node, type_info(kind), path, _NO_EXTRA)
        return self

    def _value(self, node: YamlNode, kind: schema.Type, path: str, extra: Extra) -> None:
        if isinstance(kind, schema.Metadata):
            extra = {**extra, **(kind.extra or {})}
            kind = kind.type
        if "accepts" in extra:
            kind = type_info(extra["accepts"])
            extra = {key: value for key, value in extra.items() if key != "accepts"}
            return self._value(node, kind, path, extra)
        before = len(self.problems)
        self._alternatives(node, kind, path, extra)
        if len(self.problems) == before and "check" in extra:
            self._content(node, path, extra)
        return None

    def _alternatives(self, node: YamlNode, kind: schema.Type, path: str, extra: Extra) -> None:
        if isinstance(kind, schema.UnionType):
            structs = [m for m in describe.members(kind) if isinstance(m, schema.StructType)]
            if len(structs) > 1 and node.is_mapping:
                return self._tagged(node, structs, path)
            fitting = [m for m in kind.types if matches(node.value, m)]
            if fitting:
                return self._value(node, fitting[0], path, _without_check(extra))
            return self._wrong_kind(node, kind, path, extra)
        if not matches(node.value, kind):
            return self._wrong_kind(node, kind, path, extra)
        return self._one(node, kind, path, extra)

    def _one(self, node: YamlNode, kind: schema.Type, path: str, extra: Extra) -> None:
        if isinstance(kind, schema.StructType):
            self._struct(node, kind, path)
        elif isinstance(kind, schema.CustomType):
            if kind.cls is Hyperparameters:
                self._hyperparameters(node, path)
        elif isinstance(kind, schema.DictType):
            for key, child in node.value.items():
                self._value(child, kind.value_type, key_path(path, key), _NO_EXTRA)
        elif isinstance(kind, schema.VarTupleType):
            self._list(node, kind, path, extra)
        elif isinstance(kind, schema.IntType | schema.FloatType):
            if not in_bounds(node.value, kind):
                self._wrong_kind(node, kind, path, extra)
        elif isinstance(kind, schema.StrType):
            self._text(node, kind, path, extra)
        elif isinstance(kind, schema.LiteralType) and node.value not in kind.values:
            given = _SYNONYMS.get(node.value, node.value)
            hint = describe.did_you_mean(given, map(str, kind.values))
            self._wrong_kind(node, kind, path, extra, hint)

    def _list(self, node: YamlNode, kind: schema.VarTupleType, path: str, extra: Extra) -> None:
        if len(node.value) < (kind.min_length or 0):
            self._report(node.at, path, "at least one item is expected, found an empty list")
        for index, item in enumerate(node.value):
            passed = {key: value for key, value in extra.items() if key == "secret"}
            self._value(item, kind.item_type, key_path(path, index), passed)

    def _text(self, node: YamlNode, kind: schema.StrType, path: str, extra: Extra) -> None:
        too_short = len(node.value) < (kind.min_length or 0)
        if too_short or (kind.pattern and not re.search(kind.pattern, node.value)):
            self._wrong_kind(node, kind, path, extra)

    def _struct(
        self, node: YamlNode, kind: schema.StructType, path: str, others: Owners = _NO_OWNERS
    ) -> None:
        before = len(self.problems)
        fields = {field.encode_name: field for field in kind.fields}
        for key, child in node.value.items():
            if key in fields:
                self._field(child, fields[key], key_path(path, key))
            elif key != kind.tag_field:
                self._unknown(child, key, kind, path, others)
        if self._complete:
            self._required(node, kind, path)
            if len(self.problems) == before:
                self._rules(node, kind, path)

    def _field(self, node: YamlNode, field: schema.Field, path: str) -> None:
        extra = (isinstance(field.type, schema.Metadata) and field.type.extra) or _NO_EXTRA
        if node.value is None and not isinstance(field.type, schema.AnyType):
            return
        if ("ignored" in extra or "deprecated" in extra) and not _is_default(node, field):
            notes = self.ignored if "ignored" in extra else self.deprecated
            notes.append(Noted(path, node.where, extra.get("deprecated", "")))
        self._value(node, field.type, path, _NO_EXTRA)

    def _required(self, node: YamlNode, kind: schema.StructType, path: str) -> None:
        for field in kind.fields:
            child = node.value.get(field.encode_name)
            given = child is not None and (
                child.value is not None or isinstance(field.type, schema.AnyType)
            )
            if field.required and not given:
                want = describe.expected(field.type)
                name = field.encode_name
                message = f"{name} is required but missing: {want} is expected"
                self._report(node.where, key_path(path, name), message)

    def _rules(self, node: YamlNode, kind: schema.StructType, path: str) -> None:
        given = {key: child.plain() for key, child in node.value.items() if child.value is not None}
        for field, message, hint in broken_rules(kind.cls, given):
            child = node.value.get(field) if field else None
            at = child.at if child else node.where
            self._report(at, key_path(path, field) if field else path, message, hint)

    def _unknown(
        self,
        node: YamlNode,
        key: str,
        kind: schema.StructType,
        path: str,
        others: Owners,
    ) -> None:
        if key in others:
            if kind.cls is Custom:
                return
            message = f'{path} "{kind.tag}" has no field {describe.quoted(key)}'
            hint = f"it belongs to {', '.join(others[key])}"
        else:
            message = f"there is no key {describe.quoted(key)} here"
            known = [field.encode_name for field in recommended(kind)]
            hint = unknown_key_hint(key, [*known, *filter(None, [kind.tag_field])], path)
        self._report(node.where, key_path(path, key), message, hint)

    def _tagged(self, node: YamlNode, structs: list[schema.StructType], path: str) -> None:
        field = str(structs[0].tag_field)
        by_tag = {str(struct.tag): struct for struct in structs}
        tag = node.get(field)
        if tag is None:
            self._untagged(node, structs, field, path)
        elif not isinstance(tag.value, str) or tag.value not in by_tag:
            hint = _tag_hint(path, tag.value) or describe.did_you_mean(str(tag.value), by_tag)
            message = f"{describe.one_of(by_tag)} is expected, found {describe.found(tag)}"
            self._report(tag.at, key_path(path, field), message, hint)
        else:
            self._struct(node, by_tag[tag.value], path, _owners(structs))

    def _untagged(
        self, node: YamlNode, structs: list[schema.StructType], field: str, path: str
    ) -> None:
        tags = describe.one_of(struct.tag for struct in structs)
        if self._complete:
            message = f"{field} is required but missing: {tags} is expected"
            self._report(node.where, key_path(path, field), message)
        owners = _owners(structs)
        for key, child in node.value.items():
            if key not in owners and key != field:
                self._unknown(child, key, structs[0], path, _NO_OWNERS)

    def _hyperparameters(self, node: YamlNode, path: str) -> None:
        for name, spec in node.value.items():
            self._hyperparameter(spec, key_path(path, name))

    def _hyperparameter(self, spec: YamlNode, path: str) -> None:
        if not spec.is_mapping:
            return
        if "type" not in spec.value:
            self._hyperparameters(spec, path)
            return
        kind = spec.value["type"]
        if isinstance(kind.value, str):
            self._value(spec, type_info(Range), path, _NO_EXTRA)
            for index, val in enumerate(val_nodes(spec)):
                self._hyperparameter(val, key_path(f"{path}.vals", index))
        else:
            types = describe.one_of(sorted(describe_types()))
            message = f"{types} is expected, found {describe.found(kind)}"
            self._report(kind.at, key_path(path, "type"), message, _TYPE_HINT)

    def _wrong_kind(
        self, node: YamlNode, kind: schema.Type, path: str, extra: Extra, hint: str = ""
    ) -> None:
        want = describe.expected(kind, extra)
        seen = describe.found(node, bool(extra.get("secret")))
        hint = hint or describe.conversion_hint(node, kind)
        self._report(node.at, path, f"{want} is expected, found {seen}", hint)

    def _content(self, node: YamlNode, path: str, extra: Extra) -> None:
        wrong = extra["check"](node.plain())
        if wrong is None:
            return
        seen = describe.found(node, bool(extra.get("secret")))
        if "expected" in extra:
            self._report(node.at, path, f"{extra['expected']} is expected, found {seen}", wrong)
        else:
            self._report(node.at, path, f"{wrong}, found {seen}")

    def _report(self, at: Position, path: str, message: str, hint: str = "") -> None:
        self.problems.append(ConfigProblem.at(at, path, message, hint))


_TYPE_HINT = "`type` is reserved: a hyperparameter can't be called so"
_SYNONYMS = {"gpu": "cuda"}


def _tag_hint(path: str, tag: Any) -> str:
    elsewhere = path.split(".")[0] != "hyperparameters"
    return "" if elsewhere or describe.did_you_mean(str(tag), describe_types()) else _TYPE_HINT


def describe_types() -> list[str]:
    """The types of hyperparameters."""
    return [str(member.tag) for member in describe.members(type_info(Range))]  # type: ignore[attr-defined]


def _owners(structs: list[schema.StructType]) -> Owners:
    owners: dict[str, list[str]] = {}
    for struct in structs:
        for field in struct.fields:
            owners.setdefault(field.encode_name, []).append(str(struct.tag))
    return owners


def _without_check(extra: Extra) -> Extra:
    # The check of the whole is run by the caller, once the alternative itself is in order.
    return {key: value for key, value in extra.items() if key != "check"}


def _is_default(node: YamlNode, field: schema.Field) -> bool:
    plain = node.plain()
    default = msgspec.json.decode(msgspec.json.encode(field.default))
    return plain in ({}, []) or bool(plain == default)

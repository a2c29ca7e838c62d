"""Filters of points, built from Python's operators.

>>> from stratann.filters import Field
>>> cheap = (Field("price") < 50) & Field("brand").any("x", "y")
>>> cheap.to_dict()
{'must': [{'key': 'price', 'range': {'lt': 50}}, {'key': 'brand', 'match': {'any': ['x', 'y']}}]}
>>> (~(Field("color") == "red")).to_dict()
{'must_not': [{'key': 'color', 'match': {'value': 'red'}}]}

A condition goes wherever a filter goes: ``collection.search(vectors, filter=cheap)``. It is the dictionary that
``to_dict`` returns, in the form of Qdrant's filters.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable
from typing import Any, NoReturn, Union

from ._errors import InputError

__all__ = ["Condition", "Field", "all_of", "any_of", "has_id", "has_vector", "min_should", "nested", "none_of"]

#: What a field is compared with.
Scalar = Union[str, int, float, bool, uuid.UUID, datetime.datetime, datetime.date]
#: A limit of a range.
Limit = Union[int, float, str, datetime.datetime, datetime.date]


class Condition:
    """A condition on points. ``&``, ``|`` and ``~`` combine conditions."""

    __slots__ = ("_clauses", "_single")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, single: dict[str, Any] | None = None, clauses: dict[str, Any] | None = None) -> None:
        self._single = single
        self._clauses = clauses

    def to_dict(self) -> dict[str, Any]:
        """Returns it as a filter: a dict with ``must``, ``should``, ``must_not`` or ``min_should``."""
        if self._clauses is not None:
            clauses: dict[str, Any] = _copy(self._clauses)
            return clauses
        return {"must": [_copy(self._single)]}

    def _part(self) -> dict[str, Any]:
        """It as a part of another filter."""
        part: dict[str, Any] = _copy(self._clauses if self._single is None else self._single)
        return part

    def _clause(self, name: str) -> list[dict[str, Any]]:
        """Its parts where it has this clause alone, else it as one part."""
        if self._clauses is not None and list(self._clauses) == [name]:
            parts: list[dict[str, Any]] = _copy(self._clauses)[name]
            return parts
        return [self._part()]

    def __and__(self, other: Condition) -> Condition:
        return all_of(self, other)

    def __or__(self, other: Condition) -> Condition:
        return any_of(self, other)

    def __invert__(self) -> Condition:
        return none_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.to_dict() == other.to_dict()

    def __bool__(self) -> NoReturn:
        raise InputError("a condition is neither true nor false; combine conditions by &, | and ~, and put each in ()")

    def __repr__(self) -> str:
        return f"<stratann.filters.Condition {self.to_dict()!r}>"


class Field:
    """A field of payloads, whose comparisons are conditions.

    Args:
        path: such as ``"price"``, ``"a.b"``, ``"a[].b"`` or ``"a[0]"``.
    """

    __slots__ = ("_path",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        if not isinstance(path, str):
            raise InputError(f"the path of a field is of type {type(path).__name__}; pass a str such as 'price'")
        self._path = path

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._match("value", _scalar(value))

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self.except_(value)

    def __lt__(self, limit: Limit) -> Condition:
        return self._range(lt=limit)

    def __le__(self, limit: Limit) -> Condition:
        return self._range(lte=limit)

    def __gt__(self, limit: Limit) -> Condition:
        return self._range(gt=limit)

    def __ge__(self, limit: Limit) -> Condition:
        return self._range(gte=limit)

    def any(self, *values: Any) -> Condition:
        """A value is one of these."""
        return self._match("any", _scalars(values))

    def except_(self, *values: Any) -> Condition:
        """There is a value that is none of these; null does not count."""
        return self._match("except", _scalars(values))

    def between(self, low: Limit, high: Limit) -> Condition:
        """A value is a number or a date from `low` to `high`, both included."""
        return self._range(gte=low, lte=high)

    def text(self, words: str) -> Condition:
        """A value is a string with all of these words, in any order."""
        return self._match("text", words)

    def text_any(self, words: str) -> Condition:
        """A value is a string with one of these words."""
        return self._match("text_any", words)

    def phrase(self, words: str) -> Condition:
        """A value is a string with these words next to each other."""
        return self._match("phrase", words)

    def prefix(self, start: str) -> Condition:
        """A value is a string that begins with this one; case counts."""
        return self._match("prefix", start)

    def substring(self, part: str) -> Condition:
        """A value is a string that has this one within; case counts."""
        return self._match("substring", part)

    def values_count(
        self, *, gt: int | None = None, gte: int | None = None, lt: int | None = None, lte: int | None = None
    ) -> Condition:
        """It has so many values; an array counts its elements."""
        limits = {"gt": gt, "gte": gte, "lt": lt, "lte": lte}
        return self._of("values_count", {name: limit for name, limit in limits.items() if limit is not None})

    def exists(self) -> Condition:
        """It is there, also as null or an empty array."""
        return Condition({"exists": {"key": self._path}})

    def is_empty(self) -> Condition:
        """It is missing, or has nothing but nulls and empty arrays."""
        return Condition({"is_empty": {"key": self._path}})

    def is_null(self) -> Condition:
        """It is null, or an array with null."""
        return Condition({"is_null": {"key": self._path}})

    def _match(self, how: str, value: Any) -> Condition:
        return self._of("match", {how: value})

    def _range(self, **limits: Limit) -> Condition:
        return self._of("range", {name: _scalar(limit) for name, limit in limits.items()})

    def _of(self, name: str, value: dict[str, Any]) -> Condition:
        return Condition({"key": self._path, name: value})

    def __repr__(self) -> str:
        return f"Field({self._path!r})"


def all_of(*conditions: Condition) -> Condition:
    """All of these hold; without any, every point matches."""
    return Condition(clauses={"must": [part for own in _checked(conditions) for part in own._clause("must")]})


def any_of(*conditions: Condition) -> Condition:
    """One of these holds."""
    if not conditions:
        raise InputError("any_of has no condition; pass one or more")
    return Condition(clauses={"should": [part for own in _checked(conditions) for part in own._clause("should")]})


def none_of(*conditions: Condition) -> Condition:
    """None of these holds."""
    return Condition(clauses={"must_not": [own._part() for own in _checked(conditions)]})


def min_should(min_count: int, *conditions: Condition) -> Condition:
    """At least `min_count` of these hold."""
    parts = [own._part() for own in _checked(conditions)]
    return Condition(clauses={"min_should": {"conditions": parts, "min_count": min_count}})


def nested(path: str, condition: Condition) -> Condition:
    """An element of the array at the path is an object for which the condition holds.

    Paths of the condition begin in the element.
    """
    (own,) = _checked([condition])
    return Condition({"nested": {"key": path, "filter": own.to_dict()}})


def has_id(*ids: Any) -> Condition:
    """The point has one of these ids."""
    return Condition({"has_id": [str(id_) if isinstance(id_, uuid.UUID) else _plain(id_) for id_ in ids]})


def has_vector(name: str) -> Condition:
    """The point has a vector of this name."""
    return Condition({"has_vector": name})


def _checked(conditions: Iterable[Any]) -> list[Condition]:
    listed = list(conditions)
    for own in listed:
        if not isinstance(own, Condition):
            raise InputError(f"{own!r} is no condition; pass one such as Field('price') < 50")
    return listed


def _plain(value: Any) -> Any:
    """A value of NumPy as one of Python."""
    return value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value


def _scalar(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (str, int, float)):
        return value
    raise InputError(f"a field is compared with {value!r}; pass a string, a number, True, False, a date or a UUID")


def _scalars(values: tuple[Any, ...]) -> list[Any]:
    return [_scalar(value) for value in values]


def _copy(value: Any) -> Any:
    """A copy whose lists and dicts are not those of the condition."""
    if isinstance(value, dict):
        return {name: _copy(own) for name, own in value.items()}
    return [_copy(own) for own in value] if isinstance(value, list) else value

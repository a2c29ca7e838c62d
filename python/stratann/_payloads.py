"""Payloads, filters and schemas of collections, as the compiled half takes them."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from ._errors import InputError
from ._inputs import Payload, payloads_in
from ._literals import FieldIndex
from ._points import ids_of
from .filters import Condition

#: A filter: one of `stratann.filters`, a dict in Qdrant's form, or text such as ``"price < 50 and brand = 'x'"``.
PointFilter = Union[Condition, Mapping[str, Any], str]
#: Kinds of indexes of each field: one name, or a list of names.
Schema = Mapping[str, Union[FieldIndex, Sequence[FieldIndex]]]

#: Why a search with both is refused.
NOT_TOGETHER = (
    "only and without do not go with filter, with_payload, and ids that are no numbers; use the condition has_id of "
    "filter"
)

_COMPACT = (",", ":")


def payload_of(payload: Any, what: str = "payload") -> bytes:
    """Returns a payload as JSON.

    Raises:
        InputError: no dict, or values that JSON does not have, NaN and infinity among them.
    """
    if not isinstance(payload, dict):
        raise InputError(f"{what} is of type {type(payload).__name__}; pass a dict such as {{'color': 'red'}}")
    try:
        return json.dumps(
            payload, allow_nan=False, ensure_ascii=False, separators=_COMPACT, default=_in_payload
        ).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} has a string that is no Unicode: {error.reason}; pass whole characters") from error
    except RecursionError as error:
        raise InputError(f"{what} has too many levels; pass a dict of up to 100 levels") from error
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} is no JSON ({error}); pass strings, finite numbers, True, False, None, lists and dicts"
        ) from error


def payloads_of(payload: Any, count: int) -> list[bytes | None] | None:
    """Returns the payload of each of `count` points as JSON, or None where there are none at all.

    Raises:
        InputError: no list, another length, or as in `payload_of`.
    """
    if payload is None:
        return None
    listed = payload_list(payload, "id")
    if len(listed) != count:
        raise InputError(f"there are {count} ids and {len(listed)} payloads; pass a dict or None for each id")
    return payloads_as_json(listed)


def payload_list(payload: Any, each: str) -> Sequence[Any]:
    """Returns payloads as a list, with one for each row or id.

    Raises:
        InputError: no list.
    """
    payload = payloads_in(payload)
    if isinstance(payload, (str, bytes)) or not isinstance(payload, Sequence):
        raise InputError(
            f"payload is of type {type(payload).__name__}; pass a list with a dict or None for each {each}"
        )
    return payload


def payloads_as_json(payloads: Sequence[Any]) -> list[bytes | None]:
    """Returns payloads as JSON, and None for those that are None.

    Raises:
        InputError: as in `payload_of`.
    """
    return [None if one is None else payload_of(one, f"payload[{at}]") for at, one in enumerate(payloads)]


def loaded(payload: bytes | Payload | None) -> Payload | None:
    """A payload as its user has it. Those of a server are read already."""
    if payload is None or isinstance(payload, dict):
        return payload
    read: Payload = json.loads(payload)
    return read


def filter_of(given: Any, indexed_only: bool = False) -> tuple[bytes | str, bool] | None:
    """Returns a filter as JSON or as text, and whether it is refused on a field without an index; None for none.

    Raises:
        InputError: neither a dict nor a str, or values that JSON does not have; `indexed_only` without a filter.
    """
    if given is None:
        if indexed_only:
            raise InputError("indexed_only has no use without a filter; pass filter, too")
        return None
    return _filter_form(given), bool(indexed_only)


def _filter_form(given: Any) -> bytes | str:
    if isinstance(given, Condition):
        given = given.to_dict()
    try:
        if isinstance(given, str):
            given.encode()
            return str(given)
        if isinstance(given, Mapping):
            return json.dumps(dict(given), allow_nan=False, ensure_ascii=False, default=_in_filter).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"filter has a string that is no Unicode: {error.reason}; pass whole characters") from error
    except RecursionError as error:
        raise InputError("filter has too many levels; pass one of up to 128 levels") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"filter is no JSON ({error}); pass strings, finite numbers, lists and dicts") from error
    raise InputError(
        f"filter is of type {type(given).__name__}; pass a dict such as "
        "{'must': [{'key': 'color', 'match': {'value': 'red'}}]}, or text such as \"color = 'red'\""
    )


def keys_of(keys: Any, what: str = "keys") -> list[str]:
    """Returns paths of fields.

    Raises:
        InputError: no list of strings, or an empty one.
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
        raise InputError(f"{what} is of type {type(keys).__name__}; pass a list of paths such as ['color', 'a.b']")
    named = [path_of(key, f"{what}[{at}]") for at, key in enumerate(keys)]
    if not named:
        raise InputError(f"{what} is empty; pass one path or more")
    return named


def path_of(path: Any, what: str) -> str:
    """Returns the path of a field.

    Raises:
        InputError: no str.
    """
    if not isinstance(path, str):
        raise InputError(f"{what} is of type {type(path).__name__}; pass a path such as 'color' or 'a.b'")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} is no Unicode: {error.reason}; pass whole characters") from error
    return str(path)


def schema_of(schema: Any) -> list[tuple[str, list[str]]]:
    """Returns the fields of a schema, each with the kinds of its indexes.

    Raises:
        InputError: no dict, a field that is no str, or kinds that are neither a str nor a list of them.
    """
    if not isinstance(schema, Mapping):
        raise InputError(f"schema is of type {type(schema).__name__}; pass a dict such as {{'color': 'keyword'}}")
    fields = []
    for path, kinds in schema.items():
        name = path_of(path, "a field of schema")
        listed = [kinds] if isinstance(kinds, str) else list(kinds) if isinstance(kinds, Sequence) else []
        if not listed or not all(isinstance(kind, str) for kind in listed):
            raise InputError(f"the index of the field {name} is {kinds!r}; pass 'keyword' or a list of such names")
        fields.append((name, [path_of(kind, f"the index of the field {name}") for kind in listed]))
    return fields


def _in_payload(value: Any) -> Any:
    """What JSON has in another form: NumPy's numbers and arrays, dates, and UUIDs."""
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    return _in_filter(value)


def _in_filter(value: Any) -> Any:
    """Ids and numbers that JSON does not have."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a value is of type {type(value).__name__}")


def chosen_of(ids: Any, filter: Any, indexed_only: bool) -> tuple[list[int | str | bytes] | None, Any]:
    """Returns ids, or None and a filter for the compiled half."""
    if ids is not None and filter is not None:
        raise InputError("ids and filter are both given; pass one of them")
    if ids is None and filter is None:
        raise InputError("neither ids nor a filter is given; pass one of them, filter={} for all points")
    matching = filter_of(filter, indexed_only)
    return (None, matching) if ids is None else (ids_of(ids), None)

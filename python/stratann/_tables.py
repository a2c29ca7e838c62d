"""Results as tables of pyarrow and pandas, which are imported where they are asked for."""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

from ._errors import InputError


class Tabular:
    """What has columns."""

    def _columns(self) -> dict[str, list[Any]]:
        """The values of each column by its name."""
        raise NotImplementedError

    def to_arrow(self) -> Any:
        """Returns the columns as a ``pyarrow.Table``: payloads as JSON, vectors as lists of one length, and ids as
        numbers where all are, else as strings.

        Raises:
            InputError: pyarrow is not installed.
        """
        return arrow_of(self._columns())

    def to_pandas(self) -> Any:
        """Returns the columns as a ``pandas.DataFrame``: ids, payloads and vectors are Python's.

        Raises:
            InputError: pandas is not installed.
        """
        return pandas_of(self._columns())


def imported(name: str) -> Any:
    """Returns a package that not everybody has.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"{name} is not installed: pip install {name}") from None


def arrow_of(columns: dict[str, list[Any]]) -> Any:
    """A table of pyarrow."""
    pa = imported("pyarrow")
    types = {
        "query": pa.uint32(),
        "rank": pa.uint32(),
        "seq": pa.uint64(),
        "distance": pa.float32(),
        "score": pa.float32(),
        "payload": pa.string(),
    }
    arrays = {}
    for name, values in columns.items():
        if name == "id":
            is_number = all(isinstance(one, int) for one in values)
            kind = pa.uint64() if is_number else pa.string()
            arrays[name] = pa.array(values if is_number else [str(one) for one in values], kind)
        elif name == "payload":
            texts = [None if one is None else json.dumps(one, ensure_ascii=False) for one in values]
            arrays[name] = pa.array(texts, pa.string())
        elif name == "vector":
            arrays[name] = _vectors(pa, values)
        else:
            arrays[name] = pa.array(values, types[name])
    return pa.table(arrays)


def _vectors(pa: Any, values: list[Any]) -> Any:
    """Vectors as lists of one length; null for None."""
    first = next((one for one in values if one is not None), None)
    if first is None:
        return pa.nulls(len(values))
    kind = pa.list_(pa.from_numpy_dtype(first.dtype), len(first))
    if any(one is None for one in values):
        return pa.array([None if one is None else one.tolist() for one in values], kind)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(values)), len(first))


def pandas_of(columns: dict[str, list[Any]]) -> Any:
    """A table of pandas."""
    pd = imported("pandas")
    plain = {"query", "rank", "seq", "distance", "score"}
    series = {
        name: pd.Series(values) if name in plain else pd.Series(values, dtype=object)
        for name, values in columns.items()
    }
    return pd.DataFrame(series)

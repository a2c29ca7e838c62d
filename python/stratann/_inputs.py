"""Arrays and tables of NumPy, pyarrow, pandas and polars as the arguments of a collection.

None of these packages is imported but NumPy: who passes their objects has imported them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike

from ._errors import InputError

#: A payload of a point: what a JSON object may have.
Payload = dict[str, Any]
#: Vectors: an array of shape (n, d) or lists; a list column of pyarrow or polars, a series of arrays, or a table of
#: numbers of pandas or polars.
Vectors = Union[ArrayLike, Any]
#: Payloads: a list with a dict or None for each point, or a table with a row for each.
Payloads = Union[Sequence[Union[Payload, None]], Any]


def package_of(value: Any) -> str:
    """The package that the type of a value comes from."""
    return type(value).__module__.split(".", 1)[0]


def check_mask(value: Any, what: str) -> None:
    """Refuses an array with masked values.

    Raises:
        InputError: there are some.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = int(np.ma.getmaskarray(value).sum())
        raise InputError(f"{what} has {count} masked values; leave these rows out, or fill them by {what}.filled(…)")


def _nulls(count: int, what: str) -> InputError:
    return InputError(f"{what} has {count} nulls; leave these rows out, or fill them")


def vectors_of(value: Any, what: str) -> Any:
    """Returns vectors as NumPy takes them.

    Raises:
        InputError: masked values, nulls, or a column of something else than lists of numbers.
    """
    check_mask(value, what)
    package = package_of(value)
    if package == "pyarrow":
        return _of_arrow(value, what)
    if package == "pandas":
        if int(np.sum(value.isna().to_numpy())):
            raise _nulls(int(np.sum(value.isna().to_numpy())), what)
        is_table = value.ndim == 2
        return value.to_numpy() if is_table or value.dtype != object else _stacked(value.tolist(), what)
    if package == "polars":
        is_table = hasattr(value, "columns")
        columns = value.get_columns() if is_table else [value]
        if count := sum(int(column.null_count()) for column in columns):
            raise _nulls(count, what)
        return value.to_numpy() if is_table else _stacked(value.to_list(), what)
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1:
        return _stacked(value.tolist(), what)
    return value


def _of_arrow(value: Any, what: str) -> Any:
    if hasattr(value, "combine_chunks") and hasattr(value, "chunks"):
        value = value.combine_chunks()
        if hasattr(value, "chunks"):
            value = value.chunk(0) if value.num_chunks else value
    if hasattr(value, "column_names"):
        raise InputError(f"{what} is a table; pass one column of lists, such as table['embedding']")
    if value.null_count:
        raise _nulls(value.null_count, what)
    if not hasattr(value, "flatten"):
        raise InputError(f"{what} is a column of {value.type}; pass one of lists of numbers")
    flat = value.flatten()
    if flat.null_count:
        raise _nulls(flat.null_count, what)
    lengths = {len(one) for one in value} if not hasattr(value.type, "list_size") else {value.type.list_size}
    if len(lengths) > 1:
        raise InputError(f"{what} has lists of {min(lengths)} to {max(lengths)} numbers; pass lists of one length")
    numbers = flat.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(value), -1) if len(value) else numbers.reshape(0, 0)


def _stacked(rows: list[Any], what: str) -> Any:
    """An array of rows that are arrays or lists."""
    for row in rows:
        check_mask(row, what)
    try:
        return np.stack([np.asarray(row) for row in rows]) if rows else np.empty((0, 0), np.float32)
    except ValueError as error:
        raise InputError(f"{what} is no array: {error}; pass rows of equal lengths") from None


def ids_in(value: Any) -> Any:
    """Returns ids as a list or an array.

    Raises:
        InputError: masked values, or nulls.
    """
    check_mask(value, "ids")
    package = package_of(value)
    if package == "pyarrow":
        if value.null_count:
            raise _nulls(value.null_count, "ids")
        return value.to_pylist()
    if package == "pandas":
        if count := int(value.isna().sum()):
            raise _nulls(count, "ids")
        return value.tolist()
    if package == "polars":
        if count := int(value.null_count()):
            raise _nulls(count, "ids")
        return value.to_list()
    return value


def payloads_in(value: Any) -> Any:
    """Returns payloads as a list with a dict for each point. Missing values of a table become None."""
    package = package_of(value)
    columns = list(getattr(value, "column_names" if package == "pyarrow" else "columns", []))
    if package in ("pyarrow", "pandas") and len({str(name) for name in columns}) < len(columns):
        raise InputError(f"payload has several columns of one name, among {columns}; rename them")
    if package == "pyarrow":
        return value.to_pylist()
    if package == "pandas":
        if value.ndim == 1:
            return [None if one is None or (isinstance(one, float) and one != one) else one for one in value.tolist()]
        whole = value.astype(object)
        return whole.where(value.notna(), None).to_dict("records")
    if package == "polars":
        return value.to_dicts() if hasattr(value, "to_dicts") else value.to_list()
    return value

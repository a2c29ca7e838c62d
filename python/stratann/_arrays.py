"""Arrays in the form of the engine, and vector files."""

from __future__ import annotations

import os
import warnings
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._errors import InputError

Path = Union[str, "os.PathLike[str]"]

#: The four types of a component: NumPy's, and the name it has in files and messages.
DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "u8": np.dtype("u1"),
    "i8": np.dtype("i1"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def is_path(value: object) -> bool:
    """Returns whether an argument is a path."""
    return isinstance(value, (str, os.PathLike))


def fixed(path: Path) -> str:
    """Returns the path from the root, for work that outlasts the current folder. `..` is left to the system."""
    text = os.fspath(path)
    return text if os.path.isabs(text) or not text else os.path.join(os.getcwd(), text)


def dtype_name(array: NDArray[Any], what: str) -> str:
    """Returns the name of the element type of an array.

    Raises:
        InputError: for any type but the four.
    """
    name = _NAMES.get(array.dtype)
    if name is None:
        raise InputError(
            f"{what} has dtype {array.dtype}; float32, float16, uint8 and int8 are supported: "
            f"pass {what}.astype(np.float32)"
        )
    return name


def numbers(value: ArrayLike, what: str, wanted: str = "f32") -> NDArray[Any]:
    """Converts an array or (nested) lists of numbers to one of the four types.

    An array that has one of them is returned as it is. Other floats and integers, such as float64 and what lists
    become, are converted to `wanted`.

    Raises:
        InputError: what is not numbers, rows of different lengths, or a value that `wanted` cannot hold.
    """
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise InputError(f"{what} is no array: {e}; pass rows of equal lengths") from None
    if array.dtype in _NAMES:
        return array
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} has dtype {array.dtype}; pass numbers, such as float32")
    if array.dtype.newbyteorder("=") in _NAMES:
        # Another order of bytes.
        return array.astype(array.dtype.newbyteorder("<"))
    target = DTYPES[wanted]
    with np.errstate(all="ignore"):
        converted = array.astype(target)
        if target.kind == "f":
            # Rounding is no loss; a finite value that becomes infinite is.
            lost = np.isfinite(array) & ~np.isfinite(converted)
            if array.dtype.kind in "iu":
                lost |= converted.astype(array.dtype) != array
        else:
            lost = converted != array
    if lost.any():
        place = ", ".join(str(i) for i in np.argwhere(lost)[0])
        raise InputError(
            f"{what}[{place}] is {array[tuple(np.argwhere(lost)[0])]!r}, which {target.name} cannot hold: "
            f"scale the vectors, or convert them as you mean it"
        )
    return converted


def rows_of(array: ArrayLike, what: str, *, warn: bool) -> NDArray[Any]:
    """Checks an array of shape (n, d) and makes it C-contiguous: a copy where it is not, with a warning if
    `warn`.
    """
    rows = numbers(array, what)
    if rows.ndim != 2:
        raise InputError(f"{what} has shape {rows.shape}; two dimensions are needed, (rows, components)")
    if not rows.flags.c_contiguous:
        if warn:
            warnings.warn(
                f"{what} is not C-contiguous: {rows.nbytes} bytes are copied; "
                f"pass np.ascontiguousarray({what}) once",
                UserWarning,
                stacklevel=4,
            )
        rows = np.ascontiguousarray(rows)
    return rows


def as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the bytes of a C-contiguous array without a copy."""
    return rows.reshape(-1).view(np.uint8)


def source(vectors: ArrayLike | Path, what: str) -> str | tuple[NDArray[np.uint8], int, int, str]:
    """Converts a path, or an array with its shape and type, for the engine."""
    if is_path(vectors):
        return fixed(vectors)  # type: ignore[arg-type]
    rows = rows_of(vectors, what, warn=True)  # type: ignore[arg-type]
    return as_bytes(rows), rows.shape[0], rows.shape[1], dtype_name(rows, what)


def byte_size(value: int | str | None, what: str) -> int | None:
    """Converts a size to bytes: an int, a text such as ``"2GiB"``, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return _stratann.parse_size(value)
        except InputError as e:
            raise InputError(f"{what}: {e}") from None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InputError(f'{what} is {value!r}; give a number of bytes or a text such as "2GiB"')
    return int(value)


def whole(value: Any, what: str, least: int = 0) -> int | None:
    """Checks a whole number, or None for the default."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{what} is {value!r}; give a whole number")
    if value < least:
        raise InputError(f"{what} is {value}; use {least} or more")
    return int(value)


def real(value: Any, what: str) -> float | None:
    """Checks a number, or None for the default."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{what} is {value!r}; give a number")
    return float(value)


def read_vectors(path: Path) -> NDArray[Any]:
    """Reads a whole vector file into an array of shape (n, d).

    Formats: ``.fbin .f16bin .u8bin .i8bin`` (big-ann-benchmarks), ``.fvecs .bvecs``, ``.npy``, ``.parquet``
    (``FILE.parquet#COLUMN`` where there are several list columns).

    Raises:
        InputError: an unknown format, or a file whose length differs from its header.

    >>> import numpy as np, os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "two.i8bin")
    >>> write_vectors(path, np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int8))
    >>> read_vectors(path)
    array([[1, 2, 3],
           [4, 5, 6]], dtype=int8)
    >>> folder.cleanup()
    """
    data, rows, dim, name = _stratann.read_vectors(os.fspath(path))
    return data.view(DTYPES[name]).reshape(rows, dim)


def write_vectors(path: Path, array: ArrayLike, *, force: bool = False) -> None:
    """Writes an array of shape (n, d) as a file for ``stratann build`` and benchmarks.

    The suffix is that of the element type: ``.fbin`` for float32, ``.f16bin``, ``.u8bin``, ``.i8bin``. The
    file appears whole or not at all. An existing file is replaced with ``force``; a folder, a link or a device never
    is.

    Raises:
        InputError: another suffix or element type; an existing file without ``force``.
        DiskError: the disk is full, or the folder cannot be written to.
    """
    rows = rows_of(array, "array", warn=False)
    name = dtype_name(rows, "array")
    _stratann.write_vectors(os.fspath(path), as_bytes(rows), rows.shape[0], rows.shape[1], name, force)

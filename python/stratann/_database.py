"""A client of collections: of a data folder in this process, or of a server."""

from __future__ import annotations

import json
import os
import warnings
from types import TracebackType
from typing import Any

from numpy.typing import DTypeLike

from . import _stratann
from ._arrays import Path, byte_size, fixed, real, whole
from ._collections import Collection
from ._errors import InputError
from ._literals import CollectionKind, Metric
from ._named import NamedSpecs, specs_of
from ._remote import RemoteFolder

#: What every URL of a server begins with.
_SCHEMES = ("http://", "https://")


class Client:
    """Collections of a data folder that this process opens, or of a server that has one open.

    A path opens the folder here; no other process can open it meanwhile. A URL such as ``"http://127.0.0.1:8700"`` is
    that of ``stratann serve --data``. Both have the same methods, results and errors.

    Any number of threads may use a client. After a fork, the child must open a data folder by a client of its own once
    the parent has closed its client; a client of a server goes on in the child.

    Args:
        path_or_url: the data folder, made where there is none; or the address of a server.
        ram_budget: limit in bytes of the memory of the data folder, as int or text; None for no limit. A server has its
            own.
        threads: threads of a search; None for all cores. A server has its own.
        token: sent to a server as ``Authorization: Bearer``, for a proxy that asks for it.
        timeout: most seconds to wait for a reply of a server; None for no limit.

    Raises:
        InputError: another process has the folder open, which the message names; a folder of something else; a server
            of something else; a wrong argument.
        BudgetError: the budget is too small.
        ServerError: no server answers.
        CorruptIndexError, DiskError: a damaged file, or a folder that cannot be written.

    >>> import numpy as np, os, stratann, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> client = stratann.Client(os.path.join(folder.name, "data"))
    >>> photos = client.create_collection("photos", dim=2)
    >>> photos.upsert([7, "seven"], np.array([[1, 0], [0, 1]], np.float32))
    Upserted(seq=1, new=2, replaced=0, repeated=0, skipped=[])
    >>> photos.search([[0.9, 0.1]], k=1).ids
    [[7]]
    >>> client.close()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path_or_url: Path,
        *,
        ram_budget: int | str | None = None,
        threads: int | None = None,
        token: str | None = None,
        timeout: float | None = 300.0,
    ) -> None:
        text = os.fspath(path_or_url)
        is_remote = isinstance(text, str) and text.lower().startswith(_SCHEMES)
        if isinstance(text, str) and not is_remote and _is_address(text):
            raise InputError(
                f"{text} is the address of a server: pass 'http://{text}', or for an index use stratann.connect"
            )
        wait_s = real(timeout, "timeout")
        if wait_s is not None and wait_s <= 0:
            raise InputError(f"timeout is {timeout}; pass seconds above 0, or None")
        cores = whole(threads, "threads", 1)
        self._threads = cores or os.cpu_count() or 1
        self._folder: Any
        if is_remote:
            if ram_budget is not None or cores is not None:
                raise InputError("ram_budget and threads are those of the server; start it with them")
            self._place = text
            self._folder = RemoteFolder(text, token, wait_s)
        else:
            if token is not None:
                raise InputError("token is for a server; a data folder has none")
            self._place = fixed(path_or_url)
            self._folder = _stratann.DataFolder(self._place, byte_size(ram_budget, "ram_budget"))
        if (why := self._folder.read_only()) is not None:
            warnings.warn(f"{self._place} is read-only: {why}", RuntimeWarning, stacklevel=2)

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written: the storage engine is damaged, and segments are searched as they were. None for
        a data folder that is whole."""
        why: str | None = self._folder.read_only()
        return why

    def create_collection(
        self,
        name: str,
        *,
        dim: int | None = None,
        metric: Metric | None = None,
        dtype: DTypeLike | None = None,
        kind: CollectionKind | None = None,
        vectors: NamedSpecs | None = None,
        memory_quota: int | str | None = None,
        memory_minimum: int | str = 0,
    ) -> Collection:
        """Creates an empty collection.

        Args:
            name: 1 to 255 bytes without control characters and ``/``.
            dim: components of a vector, 1 to 4096.
            metric: ``"l2"``, ``"ip"`` or ``"cosine"``; None for ``"l2"``.
            dtype: float32, float16, uint8 or int8; None for float32.
            kind: kind of index of its larger parts; ``"auto"`` and None leave the choice to each of them.
            vectors: vectors by name, in place of these: for each of up to 16 names a dict with ``dim`` and, where they
                are not the usual ones, ``metric``, ``dtype`` and ``kind``; or a number, which is ``dim``. A point may
                lack any of them. A name has 1 to 255 bytes without control characters and ``/``.
            memory_quota: the most memory of its newest points and open segments, in bytes or as text; None for no
                quota.
            memory_minimum: memory that other collections never take, in bytes or as text.

        Raises:
            InputError: a name that is taken, a minimum that has no room, or a wrong argument.
        """
        specs = specs_of((dim, metric, dtype, kind), vectors)
        limits = byte_size(memory_quota, "memory_quota"), byte_size(memory_minimum, "memory_minimum") or 0
        self._folder.create(name_of(name), specs, limits)
        return self.collection(name)

    def collection(self, name: str) -> Collection:
        """Returns a collection by its name.

        Raises:
            MissingError: there is none.
        """
        return Collection(self._folder, name, self._folder.describe(name_of(name)), self._threads)

    def collections(self) -> list[dict[str, Any]]:
        """Returns ``name``, ``dim``, ``metric``, ``dtype`` and ``kind`` of each collection; where vectors have names,
        ``name`` and ``vectors`` with the others by name; of a damaged one ``name`` and ``error``."""
        listed: list[dict[str, Any]] = json.loads(self._folder.collections())
        return listed

    def drop_collection(self, name: str) -> None:
        """Drops a collection with all of its points.

        Raises:
            MissingError: there is none.
        """
        self._folder.drop(name_of(name))

    def close(self) -> None:
        """Closes the data folder, or the connections to the server. What calls have returned is durable without it."""
        self._folder.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed, or of a process that this one was forked from."""
        is_closed: bool = self._folder.closed
        return is_closed

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stratann.Client {self._place}{', closed' if self.closed else ''}>"


def _is_address(text: str) -> bool:
    """Whether a text is a host and a port rather than a path."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in text and not os.path.exists(text)


def name_of(name: Any) -> str:
    """Checks the name of a collection."""
    if not isinstance(name, str):
        raise InputError(f"the name of a collection is {name!r}; pass a str")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the name of a collection is no Unicode: {error.reason}; pass whole characters") from error
    if not name:
        raise InputError("the name of a collection is empty; pass 1 to 255 bytes")
    return str(name)

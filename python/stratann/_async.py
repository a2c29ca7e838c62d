"""The client of collections for asyncio: the same methods as coroutines, each in a thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar

import numpy as np

from ._arrays import Path
from ._collections import Collection
from ._database import Client
from ._jobs import Job
from ._named import VectorSpec

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

#: Calls of a client that run at once.
_THREADS = 32


class _Pool:
    """The threads of a client."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "stratann")

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def end(self) -> None:
        """Ends idle threads. A later call, which gets an error, has threads of its own."""
        self._threads.shutdown(wait=False)
        self._threads = ThreadPoolExecutor(_THREADS, "stratann")


def _later(
    method: Callable[Concatenate[Any, P], T], returned: Any = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method as a coroutine, with the same signature and documentation. What it returns is wrapped by `returned`."""

    async def call(self: Any, /, *args: Any, **named: Any) -> Any:
        done = await self._pool.run(partial(method, await self._opened(), *args, **named))
        return done if returned is None else returned(done, self._pool)

    _copy_names(call, method)
    return call


def _get_later(found: property) -> Callable[[Any], Coroutine[Any, Any, Any]]:
    """A property that asks the data folder, as a coroutine."""

    async def call(self: Any) -> Any:
        opened = await self._opened()
        return await self._pool.run(lambda: found.__get__(opened))

    _copy_names(call, found.fget)
    return call


def _copy_names(call: Any, method: Any) -> None:
    call.__name__, call.__qualname__ = method.__name__, f"Async{method.__qualname__}"
    call.__doc__ = method.__doc__
    call.__signature__ = inspect.signature(method)


class AsyncJob:
    """A compaction that goes on in the background. Returned by `AsyncCollection.compact_later`."""

    def __init__(self, job: Job, pool: _Pool) -> None:
        self._job, self._pool = job, pool

    async def _opened(self) -> Job:
        return self._job

    @property
    def kind(self) -> str:
        """What is done: ``"compact"``."""
        return self._job.kind

    progress = _get_later(Job.progress)  # type: ignore[arg-type]
    is_done = _get_later(Job.is_done)  # type: ignore[arg-type]
    wait = _later(Job.wait)

    def __repr__(self) -> str:
        return repr(self._job).replace("Job", "AsyncJob", 1)


class AsyncCollection:
    """A collection of an `AsyncClient`, for any number of tasks. It has the methods of `Collection` as coroutines."""

    def __init__(self, collection: Collection, pool: _Pool) -> None:
        self._collection, self._pool = collection, pool

    async def _opened(self) -> Collection:
        return self._collection

    @property
    def name(self) -> str:
        """Its name."""
        return self._collection.name

    @property
    def dim(self) -> int:
        """Components of a vector, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._collection.dim

    @property
    def metric(self) -> str:
        """``"l2"``, ``"ip"`` or ``"cosine"``, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._collection.metric

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a component, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._collection.dtype

    @property
    def kind(self) -> str:
        """Kind of index of its larger parts, or ``"auto"``, where vectors have no names.

        Raises:
            InputError: vectors have names.
        """
        return self._collection.kind

    @property
    def vectors(self) -> dict[str, VectorSpec]:
        """What the vectors of each name are: ``dim``, ``metric``, ``dtype`` and ``kind``. Without names there is one,
        of the name ``""``."""
        return self._collection.vectors

    upsert = _later(Collection.upsert)
    update_vectors = _later(Collection.update_vectors)
    delete = _later(Collection.delete)
    search = _later(Collection.search)
    get = _later(Collection.get)
    count = _later(Collection.count)
    scroll = _later(Collection.scroll)
    set_payload = _later(Collection.set_payload)
    overwrite_payload = _later(Collection.overwrite_payload)
    delete_payload_keys = _later(Collection.delete_payload_keys)
    clear_payload = _later(Collection.clear_payload)
    set_schema = _later(Collection.set_schema)
    schema = _later(Collection.schema)
    compact = _later(Collection.compact)
    compact_later = _later(Collection.compact_later, AsyncJob)
    jobs = _later(Collection.jobs)
    set_limits = _later(Collection.set_limits)
    verify = _later(Collection.verify)
    info = _later(Collection.info)

    def __repr__(self) -> str:
        return repr(self._collection).replace("Collection", "AsyncCollection", 1)


class AsyncClient:
    """Collections of a data folder or of a server, for asyncio. It has the methods of `Client` as coroutines.

    Each call runs in a thread, up to 32 at once. A task that is cancelled stops waiting, but a change that it has begun
    is not undone. Use it by ``async with``, or call `close`.

    Args:
        path_or_url, ram_budget, threads, token, timeout: as of `Client`. The folder is opened, and the server asked, at
            the first call.

    Example::

        async with stratann.AsyncClient("http://127.0.0.1:8700") as client:
            photos = await client.collection("photos")
            found = await photos.search(vectors, k=10)
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
        options = {"ram_budget": ram_budget, "threads": threads, "token": token, "timeout": timeout}
        self._place = path_or_url
        self._open: Callable[[], Client] = lambda: Client(path_or_url, **options)  # type: ignore[arg-type]
        self._pool = _Pool()
        self._client: Client | None = None
        self._opening = threading.Lock()

    def _open_once(self) -> Client:
        with self._opening:
            if self._client is None:
                self._client = self._open()
            return self._client

    async def _opened(self) -> Client:
        return await self._pool.run(self._open_once) if self._client is None else self._client

    read_only = _get_later(Client.read_only)  # type: ignore[arg-type]
    create_collection = _later(Client.create_collection, AsyncCollection)
    collection = _later(Client.collection, AsyncCollection)
    collections = _later(Client.collections)
    drop_collection = _later(Client.drop_collection)

    async def close(self) -> None:
        """Closes the data folder, or the connections to the server. What calls have returned is durable without it."""
        if self._client is not None:
            await self._pool.run(self._client.close)

    @property
    def closed(self) -> bool:
        """Whether it is closed, or of a process that this one was forked from."""
        return self._client is not None and self._client.closed

    async def __aenter__(self) -> AsyncClient:
        await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        self._pool.end()

    def __repr__(self) -> str:
        return f"<stratann.AsyncClient {self._place}{', closed' if self.closed else ''}>"

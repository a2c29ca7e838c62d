"""Searching on running servers (``stratann serve``), over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import urlencode

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _stratann
from ._answers import collected
from ._arrays import DTYPES, dtype_name, rows_of
from ._asked import OCTETS, Asked, Ids, results_min
from ._connection import Connection, read_reply
from ._errors import InputError, QueryError, ServerError
from ._filters import Filter, named_ids
from ._parameters import search_parameters
from ._payloads import NOT_TOGETHER, PointFilter, filter_of
from ._results import SearchResult
from ._routing import Router, Routing, Silent, note

#: Queries per request.
_EACH = 64
#: Concurrent requests per server.
_REQUESTS_PER_SERVER = 4
#: Additional seconds for a reply, beyond the time limit of the server.
_TRANSFER = 10.0

_Json = dict[str, Any]


class IndexClient:
    """Client of running servers of one index, for any number of threads. Created by `connect`."""

    def __init__(
        self, addresses: str | Sequence[str], timeout: float = 5.0, affinity: bool = True
    ) -> None:
        self._addresses = _read_addresses(addresses)
        self._timeout = _read_timeout(timeout)
        self._begin()
        self._turn = 0
        self._status = self._first_status()
        self._routing = self._find_routing() if affinity else None
        _clients.add(self)

    def _begin(self) -> None:
        self._idle: dict[str, list[http.client.HTTPConnection]] = {a: [] for a in self._addresses}
        self._lock = threading.Lock()

    def _begin_in_child(self) -> None:
        """Gives a child connections and locks of its own: the parent reads from those that both have."""
        self._begin()
        self._routing = self._find_routing() if self._routing else None

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return int(self._status["rows"])

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return int(self._status["dim"])

    @property
    def metric(self) -> str:
        """``"l2"``, ``"ip"`` or ``"cosine"``."""
        return str(self._status["metric"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a component; queries must have it."""
        return DTYPES[self._status["dtype"]]

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        recall: float | None = None,
        *,
        # parameters: client
        search_list: int | None = None,
        nprobe: int | None = None,
        early_stop: float | None = None,
        stop_slack: float | None = None,
        width: int | str | None = None,
        mode: str = "barrier",
        patience: int | None = None,
        head: bool | None = None,
        whole_blocks: bool | None = None,
        seeds: bool | None = None,
        rerank: int | None = None,
        order: str | None = None,
        stop_early: bool | None = None,
        weights: bool | None = None,
        bounds: str | None = None,
        local_lists: int | None = None,
        local_list: int | None = None,
        votes: int | None = None,
        prune_dimension: bool | None = None,
        prune_code: bool | None = None,
        prune_vector: bool | None = None,
        prewarm: bool | None = None,
        fan_out: int | None = None,
        busy_last: bool | None = None,
        balance: bool | None = None,
        pipeline: bool | None = None,
        chain: bool | None = None,
        rule: str | None = None,
        candidates: int | None = None,
        batch_size: int | None = None,
        epsilon_stop: float | None = None,
        beta: int | None = None,
        margin: float | None = None,
        ef: int | None = None,
        scan_clusters: bool | None = None,
        # end of parameters
        static_order: bool | None = None,
        only: Filter = None,
        without: Filter = None,
        filter: PointFilter | None = None,
        indexed_only: bool = False,
        with_payload: bool = False,
        timeout: float | None = None,
        partial: bool = False,
        **unknown: NoReturn,
    ) -> SearchResult:
        """Finds the `k` nearest vectors of each query.

        Queries are sent in requests of up to 64, to the servers in turn, or to those of a remote-hnsw that have
        their clusters cached. Queries that one server cannot answer go to the next one, once to each.

        Args:
            queries: shape (nq, d), or (d,) for one query, of the dtype of the index. One query gives results
                of shape (1, k).
            k: results per query. With k above the number of rows there are fewer columns, and a warning.
            recall: target recall@k; 0.95 unless `search_list` or `nprobe` is given.
            .. parameters: client
            search_list: of a disk-graph, flat: length of the beam, instead of a recall (L in DiskANN, ef in HNSW);
                several values make one run each.
            nprobe: of a hybrid-ivf, grid-ivf, gpu-ivf, remote-hnsw: most inverted lists to visit, or clusters to
                search in a remote-hnsw; several values make one run each.
            early_stop: of a hybrid-ivf: with `nprobe`: stop after this share of the lists, consecutively without a
                new result; never.
            stop_slack: of a disk-graph, hybrid-ivf: with `search_list`: stop when the best unread candidate is this
                many standard errors of its code distance farther than the k-th result. With `nprobe`: prune vectors
                that are this many standard errors beyond the k-th result [default: prune by exact bounds only]; never.
            width: concurrent reads of a query; auto reads more at once when few queries are in flight. With auto,
                answers depend on the number of queries in flight and on their order. With a number, and by default,
                they do not, in the mode barrier; 2 of a disk-graph that reads whole blocks, 8 of a flat, otherwise 1.
            mode: whether a step waits for all of its reads: ``barrier``: A step waits for all of its reads: equal
                results on every run; ``eager``: A step uses the reads that have arrived: lower latency, a few more
                reads; barrier.
            patience: of a disk-graph: stop after this many consecutive reads without a new result; 0 for never; from
                the curve; never with `search_list`.
            head: of a disk-graph: take the first candidates from the head graph; true.
            whole_blocks: of a disk-graph, gpu-ivf: use all nodes of a block that was read; true.
            seeds: of a disk-graph: with a filter whose rows lie far from the query, walk once more, among them; true.
            rerank: of a disk-graph: walk by codes alone, and compare so many candidates in the end; with 0, compare
                nodes as their blocks arrive; as calibrated in memory; 0 from disk.
            order: of a hybrid-ivf: order in which lists are visited: ``evidence``: By distance to the centroid, less
                a gain for sampled vectors that were found; ``votes``: By the number of sampled vectors that were
                found, as in the paper; ``centroid``: By the distance to the centroid, without the navigation graph;
                ``expected``: By the expected number of results; chosen by calibration.
            stop_early: of a hybrid-ivf: stop where lists bring nothing more; true.
            weights: of a hybrid-ivf: weigh a list without a new result by what was to be expected of it, for the
                early stop; true.
            bounds: of a hybrid-ivf: bounds that prune vectors before they are read; they never change a result:
                ``off``: None: every vector of a visited list is read; ``centroid``: Distances to centroids, as in the
                paper; ``code``: Codes with the radius of their error; ``both``: Both; both.
            local_lists: of a hybrid-ivf: sub-lists to scan in a divided list; as planned.
            local_list: of a hybrid-ivf: length of the beam in a list with a graph; 32.
            votes: of a hybrid-ivf: sampled vectors of the navigation graph that count towards the rank of their
                lists; 64.
            prune_dimension: of a grid-ivf: drop a vector as soon as its first components exceed the threshold; true.
            prune_code: of a grid-ivf: drop a vector by its code, before any of its components is read; true.
            prune_vector: of a grid-ivf: let the threshold fall from list to list; true.
            prewarm: of a grid-ivf: score some vectors of every list first, for a first threshold; true.
            fan_out: of a grid-ivf: rows of lists to visit at a time, where they are divided over servers. More of
                them take less time and more work: each row is pruned by those that have ended; 1.
            busy_last: of a grid-ivf: let slices on busy servers come last; true.
            balance: of a grid-ivf: let the loads of servers count: for the order of slices, and among replicas; true.
            pipeline: of a grid-ivf: visit the slices of a row one after another, each pruning for those that follow;
                true.
            chain: of a grid-ivf: let one job visit the rows of whole lists one after another, and reply at the end of
                its way; true.
            rule: of a gpu-ivf: what ends re-ranking: ``static``: A fixed number of candidates is re-ranked;
                ``changes``: Mini-batches that change few results end it (FusionANNS, algorithm 1); ``margin``: The
                code distance of the next candidate ends it; the cheaper of margin and changes with `recall`, margin
                otherwise.
            candidates: of a gpu-ivf: most candidates to re-rank; from the curve; 16 k + 128 with `nprobe`.
            batch_size: of a gpu-ivf: candidates of a mini-batch; from the curve; 16 with `nprobe`.
            epsilon_stop: of a gpu-ivf: with `rule` changes: a mini-batch that changes at most this share of the
                results is without effect.
            beta: of a gpu-ivf: with `rule` changes: stop after this many mini-batches without effect, consecutively.
            margin: of a gpu-ivf: with `rule` margin: stop when the next candidate is farther by its code than the
                last result by so many standard errors of its distance; with codes that were trained, by this share of
                the distance.
            ef: of a remote-hnsw: length of the beam in each cluster (efSearch); from the curve; 48 or 1.5 k with
                `nprobe`.
            scan_clusters: of a remote-hnsw: compare all vectors of a cluster where that is faster than a search of
                its graph; true.
            .. end of parameters
            static_order: the opposite of `busy_last`.
            only: return only rows with these ids, of shape (n,), in any order; or a list of such ids for each query.
                One list for all queries is sent once in each request. A mask is refused, because servers do not tell
                whether ids are the numbers of rows.
            without: return no row with these ids, given as in `only`.
            filter, indexed_only, with_payload: as in `Index.search`, of servers of an index with payloads.
            timeout: time limit of a query on a server, seconds; None for that of `connect`.
            partial: accept partial results when no live server holds a part of the index; a warning counts
                them.

        Returns:
            As `Index.search`. `latency_us` is measured by the servers; `stats` has ``queries``,
            ``seconds``, ``qps``, ``latency_us`` (mean, p50, p95, p99), ``params``, counters ``per_query``
            (means) and in ``totals``, and ``partial``, the number of partial results. Where queries are routed by what
            servers have cached, ``routed_by_cache`` counts those that went to a server for that. With `only` or
            `without` there is ``filter``, what the servers say of the filter, or of that of each query: how many rows
            match, the ids that no row has, and how the rows are found; the same with `filter`.

        Raises:
            InputError: wrong dimension, dtype or argument, NaN in a query, or a recall below 1 on an
                index without a curve; a filter that is wrong, or of an index without payloads.
            ServerError: no server answered any query.
            QueryError: some queries failed; it holds the reasons and the results of the others.
        """
        how = search_parameters(locals())
        rows = self._queries(queries)
        asked = {
            **{name: str(value).lower() if isinstance(value, bool) else value for name, value in how.items()},
            "timeout_ms": round(1000 * (self._timeout if timeout is None else _read_timeout(timeout))),
            "partial": "true" if partial else None,
            "with_payload": "true" if with_payload else None,
            "indexed_only": "true" if indexed_only else None,
        }
        parameters = urlencode({name: value for name, value in asked.items() if value is not None})
        named = named_ids(only, without, len(rows), "servers do not tell whether ids are the numbers of rows")
        ids = None if named is None else Ids(named[0], named[1], [one.tolist() for one in named[3]])
        wanted = filter_of(filter, indexed_only)
        if ids is not None and (wanted is not None or with_payload):
            raise InputError(NOT_TOGETHER)
        asked_all = Asked(parameters, ids, None if wanted is None else wanted[0])
        started = time.perf_counter()
        routed = self._routing.found(parameters) if self._routing else None
        if routed is not None:
            answers, params = self._ask_routed(rows, asked_all, *routed)
        else:
            answers, params = self._ask_all(rows, asked_all)
        seconds = time.perf_counter() - started
        columns = min(k, self.rows)
        result, failed = collected(answers, columns, seconds, params)
        result.stats.update([routed[0].counted()] if routed else [])
        if ids is not None or wanted is not None:
            said = [answer.get("filter") for answer in answers]
            is_each = ids is not None and ids.each
            result.stats["filter"] = said if is_each else next((one for one in said if one), None)
        if columns < k:
            warnings.warn(
                f"k is {k}, the index has {self.rows} rows: {columns} columns are returned", stacklevel=2
            )
        self._check_complete(result, answers, failed)
        return result

    def health(self) -> list[_Json]:
        """One dict per address: ``address``, ``healthy`` (whether the whole index is reachable), and
        ``server``, ``servers`` and ``missing``, or ``error`` when the server does not respond.
        """
        return self._ask_each("/v1/health", {"healthy": False})

    def status(self) -> list[_Json]:
        """One dict per address: ``address`` and the counters since the start of the server, or ``error`` when
        it does not respond.
        """
        return self._ask_each("/v1/status", {})

    def close(self) -> None:
        """Closes idle connections. A later search opens new ones."""
        with self._lock:
            kept = [c for idle in self._idle.values() for c in idle]
            for idle in self._idle.values():
                idle.clear()
        for connection in kept:
            connection.close()

    def __enter__(self) -> IndexClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        shape = f"{self.rows} rows of {self.dim} {self._status['dtype']}"
        return f"<stratann.IndexClient {','.join(self._addresses)}: {shape}, {self.metric}>"

    def _first_status(self) -> _Json:
        silent = []
        for address in self._addresses:
            try:
                code, status = self._request(address, "GET", "/v1/status")
            except Silent as e:
                silent.append(str(e))
                continue
            if code == 200 and status.get("dtype") in DTYPES:
                return status
            raise ServerError(f"{address} is not a stratann server, or has another version")
        raise ServerError(f"no server answers ({'; '.join(silent)}); start one with `stratann serve`")

    def _find_routing(self) -> Routing:
        return Routing(
            self._addresses,
            (self.dim, self.metric, str(self._status["dtype"])),
            lambda address, path: self._request(address, "GET", path),
            lambda address, path: self._send(address, "GET", path),
        )

    def _queries(self, queries: ArrayLike) -> NDArray[Any]:
        array = np.asarray(queries)
        name, wanted = dtype_name(array, "queries"), self._status["dtype"]
        if name != wanted:
            raise InputError(
                f"queries are {name} ({array.dtype}), the index holds {wanted}: "
                f"pass queries.astype(np.{self.dtype.name})"
            )
        rows = rows_of(array[np.newaxis] if array.ndim == 1 else array, "queries", warn=False)
        if rows.shape[1] != self.dim:
            raise InputError(f"queries have {rows.shape[1]} dimensions, the index has {self.dim}")
        if len(rows) == 0:
            raise InputError("there are no queries; pass at least one")
        return rows

    def _ask_all(self, rows: NDArray[Any], asked: Asked) -> tuple[list[_Json], _Json]:
        """Returns the answers to all queries, in order, and the parameters used."""
        numbers = list(range(len(rows)))
        parts = [numbers[i : i + _EACH] for i in range(0, len(rows), _EACH)]
        with self._lock:
            first, self._turn = self._turn, self._turn + len(parts)
        turns = range(first, first + len(parts))
        threads = min(len(parts), _REQUESTS_PER_SERVER * len(self._addresses))
        if threads == 1:
            replies = [self._ask(turn, rows, part, asked) for turn, part in zip(turns, parts)]
        else:
            with ThreadPoolExecutor(threads, "stratann") as pool:
                replies = list(pool.map(lambda turn, part: self._ask(turn, rows, part, asked), turns, parts))
        answers = [answer for found, _ in replies for answer in found]
        return answers, next((params for _, params in replies if params), {})

    def _ask_routed(
        self, rows: NDArray[Any], asked: Asked, router: Router, nprobe: int
    ) -> tuple[list[_Json], _Json]:
        """Returns the answers to all queries, in order, from the servers that have least to do for them."""
        router.begin()
        caches = router if isinstance(router, _stratann.Router) else None
        batches = router.divide(rows.view(np.uint8).reshape(-1), nprobe, _EACH)

        def ask(batch: tuple[list[int], list[int]]) -> tuple[list[_Json], _Json]:
            numbers, needs = batch
            answering = self._routing.answering() if self._routing else []
            server = router.choose(needs, len(numbers), answering)
            try:
                return self._ask(server, rows, numbers, asked, caches)
            finally:
                router.end(server, needs)

        threads = min(len(batches), _REQUESTS_PER_SERVER * len(self._addresses))
        if threads == 1:
            replies = [ask(batch) for batch in batches]
        else:
            with ThreadPoolExecutor(threads, "stratann") as pool:
                replies = list(pool.map(ask, batches))
        answers: list[_Json] = [{} for _ in rows]
        for (numbers, _), (found, _) in zip(batches, replies):
            for number, answer in zip(numbers, found):
                answers[number] = answer
        return answers, next((params for _, params in replies if params), {})

    def _ask(
        self,
        turn: int,
        rows: NDArray[Any],
        numbers: list[int],
        asked: Asked,
        router: _stratann.Router | None = None,
    ) -> tuple[list[_Json], _Json]:
        """Returns the answers to the queries with these numbers, from server number `turn` or a later one."""
        answers: list[_Json] = [{"error": "", "kind": "unreachable"} for _ in numbers]
        params: _Json = {}
        for attempt in range(len(self._addresses)):
            left = [i for i, a in enumerate(answers) if a.get("kind") in ("overloaded", "unreachable")]
            if not left:
                break
            server = (turn + attempt) % len(self._addresses)
            address = self._addresses[server]
            cached = None if router is None else f"{router.version(server):016x}"
            path, body, kind = asked.request(rows, [numbers[i] for i in left], cached)
            said: Any = None
            of_all: _Json = {}
            try:
                code, reply = self._request(address, "POST", path, body, kind)
            except Silent as e:
                if self._routing:
                    self._routing.leave_out(server)
                found = [{"error": str(e), "kind": "unreachable"}] * len(left)
            else:
                if code == 400:
                    raise InputError(f"{address}: {reply.get('error')}")
                kind = "overloaded" if code == 503 else "unreachable"
                refused = {"error": f"{address}: {reply.get('error', code)}", "kind": kind}
                found = reply.get("answers", [refused] * len(left))
                params = reply.get("params", params)
                said = reply.get("filter")
                of_all = {name: reply[name] for name in ("any_ids", "unindexed") if name in reply}
                if router is not None and "cached" in reply:
                    note(router, server, reply["cached"])
            for at, (i, answer) in enumerate(zip(left, found)):
                answers[i] = {**answer, **of_all}
                if said is not None:
                    answers[i]["filter"] = said[at] if isinstance(said, list) else said
        return answers, params

    def _ask_each(self, path: str, silent: _Json) -> list[_Json]:
        found = []
        for address in self._addresses:
            try:
                found.append({"address": address, **self._request(address, "GET", path)[1]})
            except Silent as e:
                found.append({"address": address, **silent, "error": str(e)})
        return found

    def _request(
        self, address: str, method: str, path: str, body: bytes | None = None, kind: str = OCTETS
    ) -> tuple[int, _Json]:
        """Sends one request, whose reply is an object."""
        status, data = self._send(address, method, path, body, kind)
        try:
            reply = json.loads(data)
        except (ValueError, RecursionError) as e:
            raise Silent(f"{address}: {e}") from None
        if not isinstance(reply, dict):
            raise Silent(f"{address}: not a stratann server")
        return status, reply

    def _send(
        self, address: str, method: str, path: str, body: bytes | None = None, kind: str = OCTETS
    ) -> tuple[int, bytes]:
        """Sends one request. A closed idle connection is replaced."""
        headers = {"Content-Type": kind} if body is not None else {}
        while True:
            connection, is_kept = self._connection(address)
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                data = read_reply(response)
            except (OSError, http.client.HTTPException) as e:
                connection.close()
                if is_kept and isinstance(e, (ConnectionError, http.client.HTTPException)):
                    continue
                raise Silent(f"{address}: {e or type(e).__name__}") from None
            except BaseException:
                connection.close()
                raise
            if response.will_close:
                connection.close()
            else:
                with self._lock:
                    self._idle[address].append(connection)
            return response.status, bytes(data)

    def _connection(self, address: str) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle[address]:
                return self._idle[address].pop(), True
        return Connection(address, timeout=self._timeout + _TRANSFER), False

    @staticmethod
    def _check_complete(
        result: SearchResult, answers: list[_Json], failed: list[tuple[int, str]]
    ) -> None:
        if failed:
            number, why = failed[0]
            is_none_reached = all(a.get("kind") in ("overloaded", "unreachable") for a in answers)
            if is_none_reached:
                raise ServerError(f"no server answered any of {len(answers)} queries: {why}")
            message = f"{len(failed)} of {len(answers)} queries failed, the first is query {number}: {why}"
            raise QueryError(message, failed, result)
        partial = result.stats["partial"]
        if partial:
            reason = "because no live server holds a part of the index"
            warnings.warn(f"{partial} results are partial, {reason}", stacklevel=3)
        columns = result.ids.shape[1]
        wanted = np.array([columns if "error" in a else results_min(a.get("filter"), columns) for a in answers])
        short = int(np.count_nonzero(result.counts < wanted)) - len(failed)
        if short:
            lack = "missing results have distance infinity; increase recall, search_list or nprobe"
            warnings.warn(f"{short} queries found fewer results than requested: {lack}", stacklevel=3)


_clients: weakref.WeakSet[IndexClient] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [client._begin_in_child() for client in list(_clients)])


def _read_addresses(addresses: str | Sequence[str]) -> list[str]:
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = []
    for address in given:
        plain = str(address).strip()
        plain = plain[len("http://") :] if plain.startswith("http://") else plain
        plain = plain.rstrip("/")
        host, _, port = plain.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in plain:
            raise InputError(f'{address!r} is not an address; give "HOST:PORT", such as "127.0.0.1:8700"')
        found.append(plain)
    if not found:
        raise InputError('there are no addresses; give "HOST:PORT", or a list of them')
    return found


def _read_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0.001 <= timeout <= 60:
        raise InputError(f"timeout is {timeout!r}; give 0.001 to 60 seconds")
    return float(timeout)


def connect(addresses: str | Sequence[str], timeout: float = 5.0, affinity: bool = True) -> IndexClient:
    """Connects to running servers of one index, to search there.

    Args:
        addresses: ``"HOST:PORT"``, several with commas between them, or a list of them.
        timeout: default time limit of a query on a server, seconds; up to 60.
        affinity: of several servers, send queries where the search of a partitioned disk-graph enters, or where their
            clusters of a remote-hnsw are cached; False sends them to the servers in turn.

    Raises:
        InputError: an invalid address.
        ServerError: no server responds.

    Example::

        servers = stratann.connect("127.0.0.1:8700")
        r = servers.search(queries, k=10, recall=0.95)
    """
    return IndexClient(addresses, timeout, affinity)

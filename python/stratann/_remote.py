"""A data folder that a server has open (``stratann serve --data``), over HTTP.

`RemoteFolder` has the methods of the compiled `DataFolder`, so that a client is one class whatever it opens.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import select
import ssl
import threading
import time
import uuid
from typing import Any, Callable, NoReturn
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from . import _errors
from ._connection import Connection, SecureConnection, read_reply
from ._errors import BusyError, InputError, ServerError, UnknownOutcomeError, plain

_Json = dict[str, Any]
_RawId = Any
_Filter = Any
_Given = list[tuple[str, NDArray[np.uint8], "list[bool] | None"]]

#: A UUID as servers write it.
_UUID = re.compile(r"[\da-f]{8}-[\da-f]{4}-[\da-f]{4}-[\da-f]{4}-[\da-f]{12}")
#: Share of the longest body that the vectors, ids and payloads of a batch may have, before base64.
_BATCH_SHARE = 0.6
#: Seconds between two looks at a job.
_LOOK_S = 0.05
#: Exceptions of the codes of errors; those of wrong input are not listed.
_EXCEPTIONS: dict[str, type[_errors.Error]] = {
    "busy": BusyError,
    "unknown_outcome": UnknownOutcomeError,
    "missing_collection": _errors.MissingError,
    "no_memory": _errors.BudgetError,
    "corrupt": _errors.CorruptIndexError,
    "read_only": _errors.CorruptIndexError,
    "disk_full": _errors.DiskError,
    "io": _errors.DiskError,
    "failed": ServerError,
    "overloaded": ServerError,
    "interrupted": ServerError,
    "slow_body": ServerError,
}


class ReplyTooLongError(InputError):
    """The server does not send that much at once."""


class RemoteFolder:
    """The collections of a server."""

    def __init__(self, url: str, token: str | None, timeout: float | None) -> None:
        self._is_secure, self._host, self._prefix = _parts(url)
        self.url = url
        self._headers = {"Accept": "application/json"}
        if token is not None:
            if not isinstance(token, str) or not token.isascii() or not token.isprintable():
                raise InputError("token is no line of ASCII; pass the token as a str")
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout = timeout
        self._context = ssl.create_default_context() if self._is_secure else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()
        self._is_closed = False
        limits = self._first_limits()
        #: Most queries of a request.
        self.queries_max = max(1, int(limits["queries"]))
        #: Most bytes of the points of a batch.
        self.batch_bytes_max = max(1, int(_BATCH_SHARE * int(limits["body_bytes"])))

    def _first_limits(self) -> _Json:
        try:
            limits = self._ask("GET", "/v1/status").get("limits")
        except InputError:
            limits = None
        if not isinstance(limits, dict) or "queries" not in limits:
            raise InputError(
                f"{self.url} serves no collections; for an index use stratann.connect, or start the server with --data"
            )
        return limits

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @property
    def closed(self) -> bool:
        return self._is_closed

    def read_only(self) -> str | None:
        why: str | None = self._ask("GET", "/v1/collections")["read_only"]
        return why

    def create(
        self, name: str, vectors: list[tuple[str, int, tuple[str, str, str]]], limits: tuple[int | None, int]
    ) -> None:
        specs = {
            own: {"dim": dim, "metric": metric, "dtype": dtype, "kind": kind}
            for own, dim, (metric, dtype, kind) in vectors
        }
        body: _Json = dict(specs[""]) if list(specs) == [""] else {"vectors": specs}
        body["memory_minimum_bytes"] = limits[1]
        if limits[0] is not None:
            body["memory_quota_bytes"] = limits[0]
        self._change("PUT", name, "", _json(body))

    def set_limits(self, name: str, quota: tuple[int | None] | None, minimum: int | None) -> None:
        body: _Json = {}
        if quota is not None:
            body["memory_quota_bytes"] = quota[0]
        if minimum is not None:
            body["memory_minimum_bytes"] = minimum
        if body:
            self._change("PATCH", name, "", _json(body))
        else:
            self.info(name)

    def collections(self) -> str:
        return json.dumps(self._ask("GET", "/v1/collections")["collections"])

    def drop(self, name: str) -> str | None:
        unfinished: str | None = self._change("DELETE", name, "")["unfinished"]
        return unfinished

    def describe(self, name: str) -> list[tuple[str, int, str, str, str]]:
        read = self._read("GET", name, "")
        specs = read.get("vectors", {"": read})
        return [(own, spec["dim"], spec["metric"], spec["dtype"], spec["kind"]) for own, spec in specs.items()]

    def info(self, name: str) -> str:
        return json.dumps(self._read("GET", name, ""))

    def upsert(
        self,
        name: str,
        ids: list[_RawId],
        vectors: _Given,
        payloads: list[bytes | None] | None,
        only: tuple[bool, int | None],
    ) -> tuple[int, int, int, int, list[_RawId]]:
        fields = {"ids": _ids(ids), "vectors": _given(vectors)}
        if payloads is not None:
            fields["payloads"] = b"[" + b",".join(b"null" if one is None else one for one in payloads) + b"]"
        if only[0]:
            fields["if_absent"] = b"true"
        if only[1] is not None:
            fields["if_unchanged_since"] = _json(only[1])
        done = self._change("PUT", name, "/points", _object(fields))
        skipped = [id_of_json(one) for one in done.get("skipped", ())]
        return done["seq"], done["new"], done["replaced"], done["repeated"], skipped

    def update_vectors(self, name: str, ids: list[_RawId], vectors: _Given) -> tuple[int, int]:
        fields = {"ids": _ids(ids), "vectors": _given(vectors)}
        done = self._change("POST", name, "/vectors", _object(fields))
        return done["seq"], done["changed"]

    def delete(self, name: str, ids: list[_RawId]) -> tuple[int, int, int]:
        done = self._change("POST", name, "/delete", _object({"ids": _ids(ids)}))
        return done["seq"], done["deleted"], done["unknown"]

    def delete_matching(self, name: str, filter: _Filter) -> tuple[int, int, int, list[str]]:
        done = self._change("POST", name, "/delete", _object(_filter(filter)))
        return done["seq"], done["deleted"], done["changed"], done["unindexed"]

    def change_payload(
        self, name: str, chosen: list[_RawId] | _Filter, update: tuple[str, bytes | None, list[str]]
    ) -> tuple[int, int, int, int]:
        what, payload, paths = update
        fields = {"ids": _ids(chosen)} if isinstance(chosen, list) else _filter(chosen)
        if payload is not None:
            fields["payload"] = payload
        if what == "set" and paths:
            fields["key"] = _json(paths[0])
        if what == "delete_keys":
            fields["keys"] = _json(paths)
        path = "/payload/delete" if what == "delete_keys" else f"/payload/{what}"
        done = self._change("POST", name, path, _object(fields))
        return done["seq"], done["changed"], done["unchanged"], done["unknown"]

    def set_schema(self, name: str, fields: list[tuple[str, list[str]]]) -> None:
        self._change("PUT", name, "/schema", _json(dict(fields)))

    def schema(self, name: str) -> str:
        return json.dumps(self._read("GET", name, "/schema")["schema"])

    def search(
        self,
        name: str,
        queries: NDArray[np.uint8],
        how: tuple[int, float, int, str | None],
        filter: _Filter | None,
        with_: tuple[bool, bool],
    ) -> tuple[Any, ...]:
        with_payload, with_vectors = with_
        fields = {"vectors": _encoded(queries), "k": _json(how[0]), "recall": _json(how[1]), **_filter(filter)}
        if how[3] is not None:
            fields["vector_name"] = _json(how[3])
        if with_payload:
            fields["with_payload"] = b"true"
        if with_vectors:
            fields.update(with_vectors=b"true", vectors_as=b'"base64"')
        found = self._read("POST", name, "/query", _object(fields))
        answers = found["answers"]
        ids = [[id_of_json(one) for one in answer["ids"]] for answer in answers]
        flat = [np.inf if one is None else one for answer in answers for one in answer["distances"]]
        payloads = [one for answer in answers for one in answer["payloads"]] if with_payload else None
        vectors = [_decoded(one) for answer in answers for one in answer["vectors"]] if with_vectors else None
        return found["seq"], ids, np.array(flat, np.float32), payloads, vectors, found["unindexed"]

    def get(self, name: str, ids: list[_RawId]) -> list[Any]:
        fields = {"ids": _ids(ids), "vectors_as": b'"base64"'}
        points = self._read("POST", name, "/get", _object(fields))["points"]
        return [None if point is None else _point(point) for point in points]

    def count(self, name: str, filter: _Filter | None, exact: bool) -> tuple[list[int], list[str]]:
        counted = self._read("POST", name, "/count", _object({**_filter(filter), "exact": _json(exact)}))
        return [counted["count"], counted["least"], counted["most"]], counted["unindexed"]

    def scroll(self, name: str, after: _RawId | None, limit: int, filter: _Filter | None) -> tuple[Any, ...]:
        behind = None if after is None else _plain_id(after)
        points, following, *rest = self._page(name, behind, limit, _filter(filter))
        return points, None if following is None else id_of_json(following), *rest

    def scroll_ordered(
        self, name: str, order: tuple[str, bool], after: str | None, limit: int, filter: _Filter | None
    ) -> tuple[Any, ...]:
        fields = {"order_by": _json(order[0]), "descending": _json(order[1]), **_filter(filter)}
        return self._page(name, after, limit, fields)

    def _page(self, name: str, after: int | str | None, limit: int, fields: dict[str, bytes]) -> tuple[Any, ...]:
        fields = {**fields, "limit": _json(limit), "with_vectors": b"true", "vectors_as": b'"base64"'}
        if after is not None:
            fields["after"] = _json(after)
        page = self._read("POST", name, "/scroll", _object(fields))
        return [_point(point) for point in page["points"]], page["next"], page["seq"], page["unindexed"]

    def compact(self, name: str, on_progress: Callable[[str, int, int, str], Any] | None) -> None:
        self.compact_later(name)
        while "merge" in (info := json.loads(self.info(name)))["jobs"]:
            if on_progress is not None:
                for own in info["progress"]:
                    on_progress(own["stage"], own["done"], own["total"], own["unit"])
            time.sleep(_LOOK_S)
        info = json.loads(self.info(name))
        if info["trouble"] is not None:
            raise error_of(info["trouble_code"], info["trouble"])

    def compact_later(self, name: str) -> None:
        self._change("POST", name, "/compact")

    def verify(self, name: str) -> tuple[int, int]:
        found = self._read("POST", name, "/verify")
        return found["seq"], found["points"]

    def _read(self, method: str, name: str, path: str, body: bytes | None = None) -> _Json:
        return self._ask(method, f"/v1/collections/{quote(name, safe='')}{path}", body)

    def _change(self, method: str, name: str, path: str, body: bytes | None = None) -> _Json:
        return self._ask(method, f"/v1/collections/{quote(name, safe='')}{path}", body, is_change=True)

    def _ask(self, method: str, path: str, body: bytes | None = None, *, is_change: bool = False) -> _Json:
        """Sends a request, and returns its reply.

        Raises:
            UnknownOutcomeError: the connection broke while a change was under way.
            ServerError: there is no reply.
            Error: what the server says.
        """
        if self._is_closed:
            raise InputError("the client is closed; open it again")
        while True:
            connection, is_kept = self._connection()
            try:
                response, data = self._exchange(connection, method, path, body)
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                why = plain(str(error) or type(error).__name__)
                was_open = getattr(error, "was_open", True)
                if is_change and was_open:
                    raise UnknownOutcomeError(
                        f"{self.url}: the connection broke before the reply ({why}); ask for the points, or repeat the "
                        "change"
                    ) from None
                if is_kept and not isinstance(error, TimeoutError):
                    continue
                raise ServerError(f"{self.url} does not answer: {why}; start the server, or try again") from None
            except BaseException:
                connection.close()
                raise
        return self._reply(response, data, is_change)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            if connection.sock is None:
                connection.connect()
            else:
                connection.sock.settimeout(self._timeout)
        except OSError as error:
            error.was_open = False  # type: ignore[attr-defined]
            raise
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        connection.request(method, self._prefix + path, body, headers)
        response = connection.getresponse()
        data = bytes(read_reply(response))
        if response.will_close:
            connection.close()
        else:
            with self._lock:
                if not self._is_closed:
                    self._idle.append(connection)
        return response, data

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """An idle connection that is open, or a new one. A child gets none of its parent's."""
        with self._lock:
            if self._process != os.getpid():
                self._process, self._idle = os.getpid(), []
            while self._idle:
                kept = self._idle.pop()
                if kept.sock is not None and not select.select([kept.sock], [], [], 0)[0]:
                    return kept, True
                # The server has closed it.
                kept.close()
        if self._is_secure:
            return SecureConnection(self._host, timeout=self._timeout, context=self._context), False
        return Connection(self._host, timeout=self._timeout), False

    def _reply(self, response: http.client.HTTPResponse, data: bytes, is_change: bool) -> _Json:
        try:
            reply = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            reply = {}
            if response.status < 300:
                raise ServerError(f"{self.url} is no stratann server: the reply is no JSON object; use another address")
        if response.status < 300:
            return reply
        self._refused(response, reply, is_change)

    def _refused(self, response: http.client.HTTPResponse, reply: _Json, is_change: bool) -> NoReturn:
        code, detail = reply.get("code"), reply.get("detail")
        if not isinstance(code, str) or not isinstance(detail, str):
            if response.status in (401, 403):
                raise InputError(f"{self.url} refuses the token (status {response.status}); pass another token=")
            if is_change and response.status in (502, 504):
                raise UnknownOutcomeError(f"{self.url}: status {response.status} of a proxy; ask for the points")
            raise ServerError(f"{self.url}: status {response.status} without a reason; is it a stratann server?")
        if code == "busy":
            after = response.headers.get("Retry-After", "1")
            raise BusyError(detail, int(after) if after.isdecimal() else 1)
        if code == "unknown_outcome":
            raise UnknownOutcomeError(detail, int(reply.get("seq", 0)))
        raise error_of(code, detail)


def error_of(code: str | None, detail: str) -> _errors.Error:
    """The exception of the code of an error."""
    if code == "reply_too_long":
        return ReplyTooLongError(detail)
    return _EXCEPTIONS.get(code or "", InputError)(detail)


def _parts(url: str) -> tuple[bool, str, str]:
    """Whether a URL is HTTPS, its host with its port, and its path."""
    wrong = InputError(f"{url!r} is no address of a server; pass one such as 'http://127.0.0.1:8700'")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not is_plain or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme == "https", host if port is None else f"{host}:{port}", parts.path.rstrip("/")


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _object(fields: dict[str, bytes]) -> bytes:
    """An object of fields that are JSON."""
    return b"{" + b",".join(b"%s:%s" % (_json(name), value) for name, value in fields.items()) + b"}"


def _filter(filter: _Filter | None) -> dict[str, bytes]:
    if filter is None:
        return {}
    form, indexed_only = filter
    fields = {"filter": form} if isinstance(form, bytes) else {"where": _json(form)}
    if indexed_only:
        fields["indexed_only"] = b"true"
    return fields


def _plain_id(value: _RawId) -> int | str:
    if isinstance(value, bytes):
        return str(uuid.UUID(bytes=value))
    return value  # type: ignore[no-any-return]


def _ids(ids: list[_RawId]) -> bytes:
    return _json([_plain_id(value) for value in ids])


def id_of_json(value: int | str) -> _RawId:
    """An id of a reply, as the compiled half has it."""
    if isinstance(value, str) and _UUID.fullmatch(value):
        return uuid.UUID(value).bytes
    return value


def _encoded(rows: NDArray[np.uint8]) -> bytes:
    return b'"' + base64.b64encode(rows.tobytes()) + b'"'


def _given(vectors: _Given) -> bytes:
    """Vectors of a change: those without a name, or by name; null for a point without one."""
    if [(name, has) for name, _, has in vectors] == [("", None)]:
        return _encoded(vectors[0][1])
    return _object({name: _encoded(rows) if has is None else _some(rows, has) for name, rows, has in vectors})


def _some(rows: NDArray[np.uint8], has: list[bool]) -> bytes:
    """Vectors that some points have, each by itself."""
    each = iter(rows.reshape(sum(has), -1) if len(rows) else [])
    return b"[" + b",".join(_encoded(next(each)) if there else b"null" for there in has) + b"]"


def _decoded(text: str | None) -> NDArray[np.uint8] | None:
    # A copy, which can be written to as others can.
    return None if text is None else np.frombuffer(base64.b64decode(text), np.uint8).copy()


def _point(point: _Json) -> tuple[Any, ...]:
    vectors = point.get("vectors")
    own = _decoded(point["vector"]) if vectors is None else {name: _decoded(one) for name, one in vectors.items()}
    return id_of_json(point["id"]), point["seq"], own, point.get("payload")

"""Sends queries to servers that have less to do: those of a remote-hnsw that have their clusters cached, and the one
of a partitioned disk-graph where the search enters.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Union

from . import _stratann
from ._errors import Error, ServerError

#: Seconds after which servers are asked again: those of which none gave its meta-HNSW, and any.
_AGAIN = 60.0
_FRESH = 600.0
#: Seconds for which a server that did not answer is left out.
_LEFT_OUT = 5.0
#: Most parameters of queries whose clusters are known.
_PARAMETERS = 1000

#: GET of a path from an address: the status, and the body.
Get = Callable[[str, str], "tuple[int, Any]"]


class Silent(Error):
    """A server did not respond, or is not a StratANN server."""


#: A way to choose servers.
Router = Union[_stratann.Router, _stratann.Landmarks]


class Routing:
    """What the servers of one index have, for any number of threads."""

    def __init__(
        self, addresses: Sequence[str], shape: tuple[int, str, str], get: Get, get_bytes: Get
    ) -> None:
        self._addresses = addresses
        self._shape = shape
        self._get = get
        self._get_bytes = get_bytes
        self._asking = threading.Lock()
        self._is_off = len(addresses) < 2
        self._is_warned = False
        self._ask_at = 0.0
        self._build = ""
        self._router: _stratann.Router | None = None
        self._landmarks: _stratann.Landmarks | None = None
        self._nprobe: dict[str, int] = {}
        self._left_out: dict[int, float] = {}

    def found(self, parameters: str) -> tuple[Router, int] | None:
        """Returns the router, and how many clusters a query with these parameters needs; None where queries go to
        servers in turn.
        """
        now = time.monotonic()
        if self._is_off:
            return None
        known = self._known(parameters)
        if now < self._ask_at and (known is not None or self._router is None):
            return known
        # While one thread asks, which may take long, the others go on.
        if not self._asking.acquire(blocking=False):
            return known
        try:
            if now >= self._ask_at:
                self._nprobe.clear()
            self._ask(parameters, now)
        finally:
            self._asking.release()
        return self._known(parameters)

    def _known(self, parameters: str) -> tuple[Router, int] | None:
        if self._landmarks is not None:
            return self._landmarks, 0
        router, nprobe = self._router, self._nprobe.get(parameters)
        return None if router is None or nprobe is None else (router, nprobe)

    def answering(self) -> list[bool]:
        """Whether each server answers, as far as is known."""
        now = time.monotonic()
        return [self._left_out.get(server, 0.0) <= now for server in range(len(self._addresses))]

    def leave_out(self, server: int) -> None:
        """Notes that a server did not answer."""
        self._left_out[server] = time.monotonic() + _LEFT_OUT

    def _ask(self, parameters: str, now: float) -> None:
        """Asks all servers for their clusters, and one for its meta-HNSW unless it is here."""
        failed = []
        for server, address in enumerate(self._addresses):
            try:
                code, clusters = self._get(address, f"/v1/clusters?{parameters}")
                if code == 404:
                    self._ask_landmarks(now)
                    return
                if code == 400:
                    # The search itself will say what is wrong.
                    return
                if code != 200:
                    raise Silent(f"{address}: status {code} of /v1/clusters")
                self._fetch(address, clusters)
            except (Silent, ServerError) as e:
                failed.append(str(e))
                continue
            if len(self._nprobe) >= _PARAMETERS:
                self._nprobe.clear()
            self._nprobe[parameters] = int(clusters["nprobe"])
            if self._router is not None:
                note(self._router, server, clusters["cached"])
        self._ask_at = now + (_AGAIN if self._router is None else _FRESH)
        if self._router is None and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                "the meta-HNSW did not arrive, so queries go to the servers in turn "
                f"({'; '.join(failed)}); it is asked for again after {_AGAIN:.0f} s; check the link, "
                "or pass affinity=False",
                stacklevel=5,
            )

    def _ask_landmarks(self, now: float) -> None:
        """Asks all servers for the vectors at which searches enter there. Those of other kinds have none."""
        rows, codes = [], []
        for address, answers in zip(self._addresses, self.answering()):
            try:
                code, own = self._get_bytes(address, "/v1/landmarks") if answers else (0, b"")
            except (Silent, ServerError):
                code, own = 0, b""
            rows.append(own if code == 200 else b"")
            codes.append(code)
        found = _stratann.Landmarks.of(rows, self._shape)
        # What fails once may be there the next time.
        self._is_off = all(code == 404 for code in codes)
        self._landmarks = found or (None if self._is_off else self._landmarks)
        self._ask_at = now + (_AGAIN if found is None else _FRESH)

    def _fetch(self, address: str, clusters: dict[str, Any]) -> None:
        if self._router is not None and clusters["build"] == self._build:
            return
        code, meta = self._get_bytes(address, "/v1/meta")
        if code != 200:
            raise Silent(f"{address}: status {code} of /v1/meta")
        build = str(clusters["build"])
        servers = len(self._addresses)
        self._router = _stratann.Router(int(build, 16), clusters["bytes"], meta, self._shape, servers)
        self._build = build
        self._nprobe.clear()


def note(router: _stratann.Router, server: int, cached: dict[str, Any]) -> None:
    """Notes what a server says that it has cached."""
    bitmap = cached.get("bitmap")
    router.note(server, int(cached["version"], 16), None if bitmap is None else bytes.fromhex(bitmap))

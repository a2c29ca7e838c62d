"""Connections to servers that end a reply which does not end by itself."""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

#: Longest reply, bytes.
_REPLY_BYTES = 256 << 20
#: Bytes that are read at a time.
_PART_BYTES = 1 << 20


class _Timed(io.RawIOBase):
    """Reads a reply from a socket within one time for all of it."""

    def __init__(self, sock: socket.socket, seconds: float | None) -> None:
        self._sock = sock
        # Keeps the socket open until it is closed itself.
        self._raw = sock.makefile("rb", buffering=0)
        self._end = None if seconds is None else time.monotonic() + seconds

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        if self._end is not None:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the reply does not end")
            self._sock.settimeout(left)
        return self._raw.readinto(into)

    def close(self) -> None:
        self._raw.close()
        super().close()


class Connection(http.client.HTTPConnection):
    """A connection whose time-out is for each whole reply."""

    def response_class(self, sock: Any, *options: Any, **named: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return http.client.HTTPResponse(_Timed(sock, self.timeout), *options, **named)  # type: ignore[arg-type]


class SecureConnection(http.client.HTTPSConnection):
    """The same over TLS."""

    def response_class(self, sock: Any, *options: Any, **named: Any) -> http.client.HTTPResponse:  # type: ignore[override]
        return http.client.HTTPResponse(_Timed(sock, self.timeout), *options, **named)  # type: ignore[arg-type]


def read_reply(response: http.client.HTTPResponse) -> bytearray:
    """Returns the body of a reply. Raises `http.client.HTTPException` where it is longer than any that is sent."""
    data = bytearray()
    while part := response.read(_PART_BYTES):
        data += part
        if len(data) > _REPLY_BYTES:
            raise http.client.HTTPException(f"a reply of more than {_REPLY_BYTES} bytes")
    return data

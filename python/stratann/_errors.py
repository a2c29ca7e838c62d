"""Errors, grouped by their remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._results import SearchResult


def plain(text: str) -> str:
    """Returns a text without what steers a terminal: it may quote a file, or another machine."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


class Error(Exception):
    """Base of all errors of this package. The message is one line: what, where, what to do."""

    def __init__(self, message: object = "") -> None:
        super().__init__(plain(str(message)))


class InputError(Error, ValueError):
    """An argument, an array or a file is wrong: correct it and try again."""


class KeywordError(InputError, TypeError):
    """A function has no keyword of this name; the message names a similar one."""


class BudgetError(Error, MemoryError):
    """The RAM budget is too small for the job; the message names the smallest that works."""


class CorruptIndexError(Error):
    """A file of an index is damaged: restore it, or build the index again."""


class DiskError(Error, OSError):
    """The operating system refused an operation: disk full, no permission, an I/O error."""


class ServerError(Error, ConnectionError):
    """No server responds, or all are overloaded: start one, use other addresses, or retry later."""


class WorkerError(Error, RuntimeError):
    """A machine of a cluster cannot do its part of a build, or was lost too often."""


class ChangeError(Error):
    """Some changes of a call are made, and others are not.

    Attributes:
        acknowledged: numbers of the vectors or ids of the call that are acknowledged, ascending. Each of the others
            may have been made if it was under way.
    """

    acknowledged: list[int]

    def __init__(self, message: str, acknowledged: list[int] | None = None) -> None:
        super().__init__(message)
        self.acknowledged = [] if acknowledged is None else acknowledged


class MissingError(InputError, KeyError):
    """There is no such collection, or it was dropped: create it, or use another name."""

    def __str__(self) -> str:
        # A KeyError would show the message in quotes.
        return str(self.args[0])


class BusyError(Error):
    """A collection has no room for a change now; nothing was written. Wait, delete points, or raise the budget.

    Attributes:
        retry_after_s: seconds after which to try again.
    """

    retry_after_s: int

    def __init__(self, message: object = "", retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnknownOutcomeError(Error):
    """Writing failed midway: whether the change is there is not known. Ask for it, or repeat it.

    Attributes:
        seq: sequence number of the change; 0 for a collection that was created or dropped.
    """

    seq: int

    def __init__(self, message: object = "", seq: int = 0) -> None:
        super().__init__(message)
        self.seq = seq


class QueryError(Error):
    """Some queries of a batch failed.

    Attributes:
        failed: pairs of a query's number and the reason, in order.
        result: the results of all queries; failed ones have none: count 0, distance infinity.
    """

    failed: list[tuple[int, str]]
    result: SearchResult | None

    def __init__(
        self,
        message: str,
        failed: list[tuple[int, str]] | None = None,
        result: SearchResult | None = None,
    ) -> None:
        super().__init__(message)
        self.failed = [] if failed is None else failed
        self.result = result

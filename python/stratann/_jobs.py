"""Handles of work that goes on in the background."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from ._arrays import real
from ._errors import Error
from ._remote import error_of

#: Seconds between two looks at a job: at first, and at most.
_LOOK_S, _LOOK_MOST_S = 0.01, 0.5


@dataclass(frozen=True)
class JobProgress:
    """How far a job is."""

    #: ``"waiting"``, ``"running"``, ``"done"`` or ``"failed"``.
    state: str
    #: What it does now; None unless it runs in the background. A job has several stages.
    stage: str | None
    #: Units of the stage that are done, and all of them; 0 where that is not known.
    done: int
    total: int
    #: What is counted, such as ``"rows"``.
    unit: str
    #: Seconds until the end of the stage at its pace so far; None where that is not known.
    eta_s: float | None
    #: Segments of the collection, and points that are in none.
    segments: int
    delta_points: int
    #: Seconds since the job was asked for.
    elapsed_s: float


class Job:
    """A compaction that goes on in the background. Returned by `Collection.compact_later`.

    A data folder that is closed, or a server that ends, forgets a job that waits.
    """

    def __init__(self, folder: Any, name: str, kind: str) -> None:
        self._folder, self._name, self._kind = folder, name, kind
        self._started = time.monotonic()
        self._ended: JobProgress | None = None
        self._failure: Error | None = None

    @property
    def kind(self) -> str:
        """What is done: ``"compact"``."""
        return self._kind

    @property
    def progress(self) -> JobProgress:
        """How far it is, as the data folder says it now.

        Raises:
            MissingError: the collection was dropped.
        """
        if self._ended is not None:
            return self._ended
        info = json.loads(self._folder.info(self._name))
        is_running = "merge" in info["jobs"]
        if not is_running:
            # What is said of a failure before the end of a job may be older than its end.
            info = json.loads(self._folder.info(self._name))
            if info["trouble"] is not None:
                self._failure = error_of(info["trouble_code"], info["trouble"])
        now = progress_of(info, time.monotonic() - self._started, self._failure)
        if not is_running:
            self._ended = now
        return now

    @property
    def is_done(self) -> bool:
        """Whether it has ended, with or without success."""
        return self.progress.state in ("done", "failed")

    def wait(self, timeout: float | None = None) -> JobProgress:
        """Waits for its end.

        Args:
            timeout: most seconds to wait; None for no limit.

        Raises:
            TimeoutError: it goes on.
            MissingError: the collection was dropped.
            Error: why it failed, as `Collection.compact`.
        """
        limit = real(timeout, "timeout")
        pause, started = _LOOK_S, time.monotonic()
        while not self.is_done:
            if limit is not None and time.monotonic() - started >= limit:
                raise TimeoutError(f"the job of {self._name!r} goes on after {limit} seconds; wait again")
            time.sleep(pause)
            pause = min(2 * pause, _LOOK_MOST_S)
        if self._failure is not None:
            raise self._failure
        return self.progress

    def __repr__(self) -> str:
        state = "not asked yet" if self._ended is None else self._ended.state
        return f"<stratann.Job {self._kind} of {self._name!r}: {state}>"


def progress_of(info: dict[str, Any], elapsed_s: float, failure: Error | None) -> JobProgress:
    """How far the merge of a collection is, by what is said of it."""
    stage: dict[str, Any] = next((own for own in info["progress"] if own["kind"] == "merge"), {})
    done, total = stage.get("done", 0), stage.get("total", 0)
    eta_s = stage["elapsed_ms"] / 1000 * (total - done) / done if 0 < done <= total else None
    if "merge" in info["jobs"]:
        state = "running" if stage else "waiting"
    else:
        state = "done" if failure is None else "failed"
    at_now = stage.get("stage"), done, total, stage.get("unit", ""), eta_s
    return JobProgress(state, *at_now, len(info["segments"]), info["delta_points"], elapsed_s)

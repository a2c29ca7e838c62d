"""Progress reports of long work."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Callable, Union

from ._errors import InputError

#: Called as ``on_progress(stage, done, total, unit)``. Where it has a method ``note``, that is called with
#: notes.
OnProgress = Callable[[str, int, int, str], Any]
Progress = Union[None, bool, OnProgress]

_PLAIN_EVERY_SECONDS = 5.0


class _Bars:
    """One tqdm bar per stage."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        if self._bar is None or self._bar.desc != stage:
            self.close()
            self._bar = self._tqdm(desc=stage, total=total or None, unit=f" {unit}", unit_scale=True)
            # tqdm appends a colon when it prints; the name without it identifies the stage.
            self._bar.desc = stage
        self._bar.update(done - self._bar.n)

    def note(self, line: str) -> None:
        self._tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Lines:
    """A line at the start of a stage, and every few seconds."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._printed_at = 0.0

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        now = time.monotonic()
        if stage != self._stage or now - self._printed_at >= _PLAIN_EVERY_SECONDS:
            self._stage, self._printed_at = stage, now
            share = f" ({100 * done // total} %)" if total else ""
            print(f"{stage}: {done} of {total} {unit}{share}", file=sys.stderr, flush=True)

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def listening(progress: Progress) -> Iterator[OnProgress | None]:
    """Converts a `progress` argument to a callback of the engine. Bars are closed at the end."""
    if progress is None or progress is False:
        yield None
    elif progress is True:
        shown = _shown()
        try:
            yield shown
        finally:
            shown.close()
    elif callable(progress):
        yield progress
    else:
        raise InputError(f"progress is {progress!r}; give True or a callable (stage, done, total, unit)")


def _shown() -> _Bars | _Lines:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines()
    return _Bars(tqdm)

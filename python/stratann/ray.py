"""Builds that outgrow one machine: the stages of `stratann.build` as tasks on a Ray cluster.

All machines share one folder. The tasks read the vectors from there and write their parts of the index to it;
nothing large goes through Ray. The index has the bytes that `stratann.build` writes with the same arguments.

>>> import numpy as np, os, ray, stratann.ray, tempfile
>>> _ = ray.init(num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
>>> folder = tempfile.TemporaryDirectory()
>>> base, path = os.path.join(folder.name, "base.fbin"), os.path.join(folder.name, "index")
>>> stratann.write_vectors(base, np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32))
>>> report = stratann.ray.build(base, path, cells=2, degree=16, build_list=32, calibration_queries=100)
>>> report.rows, report.facts["cells"] >= 2
(2000, True)
>>> stratann.open(path).rows
2000
>>> ray.shutdown()
>>> folder.cleanup()
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from . import _stratann
from ._arrays import Path, dtype_name, is_path, rows_of, write_vectors
from ._build import BuildReport, checked_ids, engine_options
from ._errors import BudgetError, Error, InputError, WorkerError
from ._progress import OnProgress, Progress, listening
from ._stratann import __version__

__all__ = ["build"]

#: Most tasks that are submitted to Ray at a time.
_SUBMITTED_MAX = 1000
#: Grace period of cancelled tasks before they are killed.
_STOP_SECONDS = 20.0
_SUFFIXES = {"f32": ".fbin", "f16": ".f16bin", "u8": ".u8bin", "i8": ".i8bin"}


def build(
    base: ArrayLike | Path,
    path: Path,
    kind: str = "disk-graph",
    metric: str = "l2",
    *,
    threads: int | None = None,
    workers: int | None = None,
    retries: int = 3,
    ram_budget: int | str | None = "2GiB",
    seed: int = 1,
    ids: ArrayLike | Path | None = None,
    on_bad_row: str = "fail",
    force: bool = False,
    resume: bool = False,
    progress: Progress = None,
    degree: int | None = None,
    build_list: int | None = None,
    alpha: float | None = None,
    passes: int | None = None,
    code_bytes: int | None = None,
    code_bits: int | None = None,
    codes: str | None = None,
    head_share: float | None = None,
    pack: bool | None = None,
    compress: bool | None = None,
    nodes_per_block: int | None = None,
    pages_per_block: int | None = None,
    exact_points: bool | None = None,
    cells: int | None = None,
    calibration_queries: int | None = None,
    **unknown: NoReturn,
) -> BuildReport:
    """Builds an index of `base` in the folder `path`, by tasks on the Ray cluster that this process is
    connected to.

    Connect with ``ray.init(address=...)`` first; otherwise Ray starts with its defaults. Most of the time is
    spent on the graph, which is divided into cells: give `cells`, two to four for each concurrent task, or a
    `ram_budget` that requires as many.

    A task that loses its worker runs again on another one. Ctrl-C, or an exception in `progress`, stops all
    tasks and keeps finished work for ``resume=True``; so does an error. `stratann.build` can resume it too, and
    vice versa.

    Args:
        base: as in `stratann.build`. A file must be visible to all machines under the same path; an array is
            written to `path` during the build.
        path: the index folder, on storage that all machines see under the same path.
        threads: threads of each task, and CPUs that it reserves; None for those of the smallest machine. The
            index does not depend on it.
        workers: most concurrent tasks; None for as many as fit on the Ray cluster.
        retries: how often a task is repeated when its worker is lost.
        ram_budget: limit in bytes of the engine in each task, reserved as Ray's resource ``memory``; it does not
            include Python and Ray.
        progress: as in `stratann.build`; it counts finished tasks.
        cells: as in `stratann.build`.

    All other arguments are those of `stratann.build`.

    Returns:
        the report; `peak_rss_bytes` is the largest of all workers.

    Raises:
        ImportError: Ray is not installed.
        WorkerError: a machine does not see the folder or the vectors, has another version of this package, or
            was lost too often; the message names it.
        InputError, BudgetError, DiskError: as `stratann.build`.
    """
    ray = _import_ray()
    options = engine_options(locals())
    folder = os.path.abspath(os.fspath(path))
    with contextlib.ExitStack() as stack:
        on_progress = stack.enter_context(listening(progress))
        if not ray.is_initialized():
            ray.init()
            stack.callback(ray.shutdown)
        options["threads"] = _threads(ray, threads, options["ram_budget"])
        vectors, options["ids"] = stack.enter_context(_in_files(base, ids, folder))
        leader = _Leader(ray, vectors, folder, options, on_progress)
        leader.limit = min(workers or _SUBMITTED_MAX, _SUBMITTED_MAX)
        leader.retries = retries
        return leader.run()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ImportError("stratann.ray needs Ray: pip install 'stratann[ray]'") from None
    return ray


def _threads(ray: Any, threads: int | None, memory: int | None) -> int:
    """Returns the threads of a task, after a check that a machine has room for one."""
    machines = [node["Resources"] for node in _nodes(ray)]
    if not machines:
        raise WorkerError("no machine of the Ray cluster has a CPU; start one with `ray start`")
    if threads is None:
        threads = int(min(machine["CPU"] for machine in machines))
    if threads < 1:
        raise InputError(f"threads is {threads}; give at least 1")
    if not any(m["CPU"] >= threads and m.get("memory", 0) >= (memory or 0) for m in machines):
        room = max(int(m["CPU"]) for m in machines), max(int(m.get("memory", 0)) for m in machines)
        raise InputError(
            f"no machine of the Ray cluster has {threads} CPUs and {memory or 0} bytes for a task; "
            f"the largest have {room[0]} and {room[1]}: lower threads or ram_budget"
        )
    return threads


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]


@contextlib.contextmanager
def _in_files(
    base: ArrayLike | Path, ids: ArrayLike | Path | None, folder: str
) -> Iterator[tuple[str, str | None]]:
    """Provides vectors and ids as files that all machines see: arrays are written to the index folder."""
    written: list[str] = []

    def target(name: str) -> str:
        if os.path.isfile(folder):
            raise InputError(f"{folder} is a file; give a folder for the index")
        os.makedirs(folder, exist_ok=True)
        written.append(os.path.join(folder, name))
        return written[-1]

    try:
        if is_path(base):
            vectors = os.path.abspath(os.fspath(base))  # type: ignore[arg-type]
        else:
            rows = rows_of(base, "base", warn=False)  # type: ignore[arg-type]
            vectors = target(".base-input" + _SUFFIXES[dtype_name(rows, "base")])
            # A build that was killed has left its own.
            write_vectors(vectors, rows, force=True)
        if ids is None or is_path(ids):
            names = None if ids is None else os.path.abspath(os.fspath(ids))  # type: ignore[arg-type]
        else:
            names = target(".ids-input.npy")
            np.save(names, checked_ids(ids))  # type: ignore[arg-type]
        yield vectors, names
    finally:
        for file in written:
            with contextlib.suppress(OSError):
                os.remove(file)
        if written:
            # Succeeds only when the folder is empty.
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _task(version: str, base: str, folder: str, options: dict[str, Any], job: str, name: str) -> str:
    """Runs one task, on a machine that Ray has chosen."""
    if version != __version__:
        raise WorkerError(_other_version(version, __version__))
    try:
        return _stratann.run_task(base, folder, options, job, name)
    except InputError as e:
        if os.path.exists(os.path.join(folder, "partial", "state.json")):
            raise
        raise WorkerError(f"{_host()}: {e}") from None


def _host() -> str:
    import socket

    return socket.gethostname()


def _other_version(version: str, found: str) -> str:
    return f"{_host()} has stratann {found}, the build was begun with {version}; install that one everywhere"


def _probe_function() -> Callable[..., str]:
    """A function that says what a machine lacks. It is nested so that Ray sends it as a whole: this package
    may be what is missing there.
    """

    def probe(version: str, token: str, base: str, ids: str | None, shape: tuple[Any, ...]) -> str:
        import os
        import socket

        host = socket.gethostname()
        try:
            import stratann
            from stratann import _stratann
        except ImportError as e:
            return f"{host} has no package stratann ({e}); install stratann {version} there"
        found = stratann.__version__
        if found != version:
            return (
                f"{host} has stratann {found}, the build was begun with {version}; "
                "install that one everywhere"
            )
        folder = os.path.dirname(os.path.dirname(token))
        if not os.path.exists(token):
            return f"{host} does not see {folder}; use a folder that all machines share"
        if not os.access(os.path.dirname(token), os.W_OK):
            return f"{host} may not write to {folder}; check the permissions"
        if ids is not None and not os.path.exists(ids):
            return f"{host} does not see {ids}; put it where all machines see it"
        try:
            found_shape = _stratann.shape_of(base)
        except stratann.Error as e:
            return f"{host} cannot read the vectors: {e}; put them where all machines see them"
        if tuple(found_shape) != tuple(shape):
            return f"{host} sees other vectors in {base}: {found_shape}, not {shape}"
        return ""

    return probe


class _Leader:
    """Runs the phases of a build, one after the other."""

    limit = _SUBMITTED_MAX
    retries = 3

    def __init__(
        self, ray: Any, base: str, folder: str, options: dict[str, Any], on_progress: OnProgress | None
    ) -> None:
        self._ray = ray
        self._base = base
        self._folder = folder
        self._options = options
        self._on_progress = on_progress

    def run(self) -> BuildReport:
        started = time.monotonic()
        split = _stratann.Split(self._base, self._folder, self._options)
        # Only a build that cannot be resumed is removed.
        worth_keeping = bool(self._options["resume"])
        try:
            self._note(split.describe())
            self._check_machines()
            while (phase := split.phase()) is not None:
                begun = time.monotonic()
                done = self._do(json.loads(phase), split.job())
                split.complete(done, time.monotonic() - begun)
                worth_keeping = True
            report = json.loads(split.publish())
        except Exception as e:
            if not worth_keeping:
                split.abandon()
            elif not isinstance(e, (InputError, BudgetError)):
                self._add_hint(e, split)
            raise
        except BaseException as e:
            self._add_hint(e, split)
            raise
        finally:
            split.close()
        report["seconds"] = time.monotonic() - started
        return BuildReport(**report)

    def _add_hint(self, raised: BaseException, split: _stratann.Split) -> None:
        """Adds a note on how to resume (Python 3.11 shows it; older ones have no notes)."""
        add_note = getattr(raised, "add_note", None)
        if add_note is not None:
            with contextlib.suppress(InputError):
                add_note(split.hint())

    def _note(self, line: str) -> None:
        note = getattr(self._on_progress, "note", None)
        if note is not None:
            note(line)

    def _tell(self, stage: str, done: int, total: int, unit: str) -> None:
        if self._on_progress is not None:
            self._on_progress(stage, done, total, unit)

    def _check_machines(self) -> None:
        """Checks on every machine that it can run tasks."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        token = os.path.join(self._folder, "partial", f"shared-{uuid.uuid4().hex}")
        with open(token, "x"):
            pass
        probe = self._ray.remote(_probe_function())
        shape = _stratann.shape_of(self._base)
        asked = {
            node["NodeID"]: probe.options(
                num_cpus=0, name="probe", scheduling_strategy=On(node["NodeID"], soft=False)
            ).remote(__version__, token, self._base, self._options["ids"], shape)
            for node in _nodes(self._ray)
        }
        try:
            answers = [self._answer(node, ref) for node, ref in asked.items()]
        finally:
            os.remove(token)
        wrong = [answer for answer in answers if answer]
        if wrong:
            more = f" (and {len(wrong) - 1} more machines)" if len(wrong) > 1 else ""
            raise WorkerError(wrong[0] + more)

    def _answer(self, node: str, ref: Any) -> str:
        """Returns the problem of a machine; empty when it has left the Ray cluster meanwhile."""
        try:
            return self._ray.get(ref)  # type: ignore[no-any-return]
        except self._ray.exceptions.RayError as e:
            if all(other["NodeID"] != node for other in _nodes(self._ray)):
                return ""
            raise WorkerError(f"a machine of the Ray cluster does not respond: {e}") from None

    def _do(self, phase: dict[str, Any], job: str) -> dict[str, str]:
        """Runs the tasks of a phase. Returns their results by name."""
        waiting: deque[tuple[str, int]] = deque((name, work) for name, work in phase["tasks"])
        count = phase["total"] - sum(work for _, work in waiting)
        self._tell(phase["name"], count, phase["total"], phase["unit"])
        remote = self._ray.remote(_task)
        shared = self._ray.put(job)
        running: dict[Any, tuple[str, int]] = {}
        done: dict[str, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.limit:
                    name, work = waiting.popleft()
                    running[self._start(remote, shared, name)] = name, work
                for ref in self._ray.wait(list(running), timeout=1.0)[0]:
                    name, work = running[ref]
                    done[name] = self._result(ref, name)
                    del running[ref]
                    count += work
                    self._tell(phase["name"], count, phase["total"], phase["unit"])
        except BaseException:
            self._stop(list(running))
            raise
        return done

    def _start(self, remote: Any, job: Any, name: str) -> Any:
        memory = self._options["ram_budget"]
        options = {"memory": memory} if memory else {}
        options |= {"num_cpus": self._options["threads"], "max_retries": self.retries, "name": name}
        return remote.options(**options).remote(
            __version__, self._base, self._folder, self._options, job, name
        )

    def _result(self, ref: Any, name: str) -> str:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)  # type: ignore[no-any-return]
        except errors.RayTaskError as e:
            self._raise(e, name)
        except errors.OutOfMemoryError as e:
            raise WorkerError(
                f"Ray ended the task {name} to save memory on its machine; "
                f"give fewer workers or a smaller ram_budget: {e}"
            ) from None
        except errors.RayError as e:
            first = str(e).strip().splitlines()[:1]
            raise WorkerError(
                f"the task {name} lost its worker {self.retries + 1} times "
                f"({type(e).__name__}: {' '.join(first)}); see Ray's logs, then continue with resume=True"
            ) from None

    def _raise(self, error: Any, name: str) -> NoReturn:
        """Raises the exception of a task, without the trace of the worker."""
        cause = error.cause
        if isinstance(cause, (Error, KeyboardInterrupt)):
            raise cause from None
        raise WorkerError(f"the task {name} failed: {cause!r}") from error

    def _stop(self, running: list[Any]) -> None:
        """Stops tasks and waits for their end, so that they write nothing afterwards."""
        for ref in running:
            self._ray.cancel(ref)
        with contextlib.suppress(KeyboardInterrupt):
            if running:
                left = self._ray.wait(running, num_returns=len(running), timeout=_STOP_SECONDS)[1]
                for ref in left:
                    self._ray.cancel(ref, force=True)

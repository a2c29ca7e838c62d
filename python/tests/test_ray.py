"""Builds on a Ray cluster, whose workers and machines are processes here."""

import fcntl
import os
import signal
import sys
import threading

import numpy as np
import pytest
from conftest import vectors

import stratann
import stratann.ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratann[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

#: The least that Ray gives its store of objects; nothing large goes through it here.
STORE_BYTES = 80_000_000
QUICK = {"degree": 12, "build_list": 24, "calibration_queries": 50}


MACHINE = {"num_cpus": 3, "object_store_memory": STORE_BYTES, "memory": 4 << 30}


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one machine, which others may join."""
    head = {"include_dashboard": False, **MACHINE}
    started = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=started.address, log_to_driver=False)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def base_path(tmp_path):
    path = tmp_path / "base.fbin"
    stratann.write_vectors(path, vectors(21, 4000, 16))
    return path


def files(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


def same(folder, base, other, **arguments):
    """Whether an index has the bytes that `stratann.build` writes."""
    stratann.build(base, other, **{"kind": "disk-graph", "threads": 1, **arguments})
    return files(folder) == files(other)


@pytest.mark.parametrize(
    ("dtype", "metric", "suffix"),
    [("f32", "l2", ".fbin"), ("u8", "cosine", ".u8bin"), ("i8", "ip", ".i8bin")],
)
def test_same_bytes_as_one_machine(cluster, tmp_path, dtype, metric, suffix):
    base = tmp_path / f"base{suffix}"
    stratann.write_vectors(base, vectors(22, 4000, 16, dtype))
    arguments = {"metric": metric, "cells": 4, **QUICK}
    report = stratann.ray.build(base, tmp_path / "ray", threads=1, **arguments)
    assert report.facts["cells"] >= 4 and report.rows == 4000 and report.peak_rss_bytes > 1 << 20
    assert set(report.stages) == {"scan", "codebook", "divide", "graph", "layout", "calibrate"}
    assert same(tmp_path / "ray", base, tmp_path / "one", **arguments)
    assert not (tmp_path / "ray" / "partial").exists()


def test_a_budget_divides_the_work_as_it_does_alone(cluster, tmp_path):
    base = tmp_path / "base.u8bin"
    stratann.write_vectors(base, vectors(23, 36_000, 8, "u8"))
    arguments = {"degree": 8, "build_list": 12, "calibration_queries": 0}
    with pytest.raises(stratann.BudgetError, match="ram_budget=") as refused:
        stratann.ray.build(base, tmp_path / "ray", ram_budget="1MiB", **arguments)
    assert not (tmp_path / "ray").exists()
    least = int(str(refused.value).split("ram_budget=")[1].split("MiB")[0])
    report = stratann.ray.build(base, tmp_path / "ray", ram_budget=f"{least}MiB", **arguments)
    assert report.facts["cells"] > 1
    assert same(tmp_path / "ray", base, tmp_path / "one", ram_budget=f"{least}MiB", **arguments)


def test_arrays_ids_and_rows_left_out(cluster, tmp_path):
    base = vectors(24, 2000, 16)
    base[[3, 1999], 2] = np.inf
    ids = np.arange(2000, dtype=np.uint64)[::-1] + 2**33
    arguments = {"ids": ids, "on_bad_row": "skip", "cells": 3, **QUICK}
    assert stratann.ray.build(base, tmp_path / "ray", **arguments).skipped_rows == 2
    assert same(tmp_path / "ray", base, tmp_path / "one", **arguments)


def test_one_cell_and_flat(cluster, tmp_path, base_path):
    for arguments in ({"kind": "flat"}, {"kind": "disk-graph", **QUICK}):
        folder = tmp_path / arguments["kind"]
        stratann.ray.build(base_path, folder, **arguments)
        assert same(folder, base_path, tmp_path / f"one-{folder.name}", **arguments)


def test_progress_counts_every_stage_to_its_end(cluster, tmp_path, base_path):
    calls = []
    stratann.ray.build(base_path, tmp_path / "i", cells=3, progress=lambda *call: calls.append(call), **QUICK)
    stages = list(dict.fromkeys(call[0] for call in calls))
    assert stages[0] == "checking vectors" and "graph" in stages and "merging cells" in stages
    for stage in stages:
        counts = [call[1:3] for call in calls if call[0] == stage]
        done = [count[0] for count in counts]
        assert done[0] == 0 and done == sorted(done) and done[-1] == counts[0][1]


def _dying_in(task, mark, delay=None):
    """Work of a task whose worker is killed once: at its beginning, or so many seconds into the work."""

    def run(version, base, folder, options, job, name):
        import os
        import threading

        import stratann.ray

        if name == task:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                if delay is None:
                    os._exit(1)
                threading.Timer(delay, os._exit, (1,)).start()
        return stratann.ray._task(version, base, folder, options, job, name)

    return run


@pytest.mark.parametrize(
    ("task", "delay"),
    [
        ("scan-0", None),
        ("cell-0", 0.02),
        ("merge-2", None),
        ("blocks-0", None),
    ],
)
def test_a_task_that_loses_its_worker_is_done_again(cluster, tmp_path, base_path, monkeypatch, task, delay):
    mark = str(tmp_path / "died")
    monkeypatch.setattr(stratann.ray, "_task", _dying_in(task, mark, delay))
    arguments = {"cells": 3, **QUICK}
    stratann.ray.build(base_path, tmp_path / "ray", threads=1, **arguments)
    assert os.path.exists(mark)
    assert same(tmp_path / "ray", base_path, tmp_path / "one", **arguments)


def test_a_machine_that_goes_takes_nothing_with_it(cluster, tmp_path, base_path):
    doomed = cluster.add_node(**MACHINE)
    cluster.wait_for_nodes()
    gone = threading.Event()

    def on_progress(stage, done, total, unit):
        if stage == "graph" and done > 0 and not gone.is_set():
            gone.set()
            cluster.remove_node(doomed, allow_graceful=False)

    arguments = {"cells": 4, **QUICK}
    stratann.ray.build(base_path, tmp_path / "ray", threads=1, progress=on_progress, **arguments)
    assert gone.is_set()
    assert same(tmp_path / "ray", base_path, tmp_path / "one", **arguments)


def test_a_machine_that_left_unnoticed_is_not_missed(cluster, tmp_path, base_path):
    # Ray calls a machine alive for some seconds after its end.
    cluster.remove_node(cluster.add_node(**MACHINE), allow_graceful=False)
    assert stratann.ray.build(base_path, tmp_path / "ray", threads=1, cells=2, **QUICK).rows == 4000


def test_a_worker_lost_too_often_ends_the_build_which_goes_on_later(
    cluster, tmp_path, base_path, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(stratann.ray, "_task", _dying_in("cell-1", str(tmp_path / "died")))
        with pytest.raises(stratann.WorkerError, match=r"task cell-1 lost its worker 1 times .*resume=True"):
            stratann.ray.build(base_path, tmp_path / "ray", cells=3, retries=0, **QUICK)
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "ray")
    report = stratann.ray.build(base_path, tmp_path / "ray", cells=3, resume=True, **QUICK)
    assert "scan" not in report.stages
    assert same(tmp_path / "ray", base_path, tmp_path / "one", cells=3, **QUICK)


@pytest.mark.parametrize("goes_on", [stratann.ray.build, stratann.build])
def test_ctrl_c_stops_the_tasks_and_what_is_done_stays(cluster, tmp_path, base_path, goes_on):
    def press(stage, done, total, unit):
        if stage == "graph" and done > 0:
            os.kill(os.getpid(), signal.SIGINT)

    arguments = {"cells": 4, **QUICK}
    with pytest.raises(KeyboardInterrupt) as raised:
        stratann.ray.build(base_path, tmp_path / "ray", workers=1, progress=press, **arguments)
    if sys.version_info >= (3, 11):  # older versions have no notes
        assert any("resume=True" in note for note in raised.value.__notes__)
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "ray")
    calls = []
    # The default of a task of Ray, which reserves it.
    again = {"kind": "disk-graph", "resume": True, "ram_budget": "2GiB", **arguments}
    goes_on(base_path, tmp_path / "ray", progress=lambda *call: calls.append(call), **again)
    assert "checking vectors" not in {call[0] for call in calls}
    if goes_on is stratann.ray.build:
        assert next(call[1] for call in calls if call[0] == "graph") > 0
    assert same(tmp_path / "ray", base_path, tmp_path / "one", **arguments)


def test_a_bad_row_is_named_and_nothing_stays(cluster, tmp_path):
    base = vectors(25, 20_000, 8)
    base[[19_000, 17_001]] = 0
    with pytest.raises(stratann.InputError, match=r"row 17001 of .*zero vector.*on_bad_row=skip"):
        stratann.ray.build(base, tmp_path / "i", metric="cosine")
    assert not (tmp_path / "i").exists()


def test_a_folder_that_a_machine_does_not_see(cluster, tmp_path, base_path):
    # Through this path every process sees what it has opened itself.
    opened = os.open(tmp_path, os.O_RDONLY)
    own = fcntl.fcntl(opened, fcntl.F_DUPFD, 700)
    try:
        with pytest.raises(stratann.WorkerError, match=r"does not see .*use a folder that all"):
            stratann.ray.build(base_path, f"/proc/self/fd/{own}/index")
        with pytest.raises(stratann.WorkerError, match="cannot read the vectors"):
            stratann.ray.build(f"/proc/self/fd/{own}/base.fbin", tmp_path / "index", force=True)
    finally:
        os.close(opened)
        os.close(own)


def test_another_version_on_a_machine(cluster, tmp_path, base_path, monkeypatch):
    monkeypatch.setattr(stratann.ray, "__version__", "9.9.9")
    with pytest.raises(
        stratann.WorkerError, match=r"has stratann 0\..*begun with 9\.9\.9; install that one everywhere"
    ):
        stratann.ray.build(base_path, tmp_path / "i")


def test_tasks_that_fit_no_machine(cluster, tmp_path, base_path):
    with pytest.raises(stratann.InputError, match="no machine of the Ray cluster has 64 CPUs"):
        stratann.ray.build(base_path, tmp_path / "i", threads=64)
    with pytest.raises(stratann.InputError, match="lower threads or ram_budget"):
        stratann.ray.build(base_path, tmp_path / "i", ram_budget="100TiB")
    with pytest.raises(stratann.InputError, match="threads is 0"):
        stratann.ray.build(base_path, tmp_path / "i", threads=0)


def test_without_ray_it_says_what_to_install(tmp_path, base_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'stratann\[ray\]'"):
        stratann.ray.build(base_path, tmp_path / "i")

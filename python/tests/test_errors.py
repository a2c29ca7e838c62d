import subprocess
import sys

import numpy as np
import pytest
from conftest import vectors

import stratann


def test_classes_fit_the_builtin_ones():
    assert issubclass(stratann.InputError, ValueError)
    assert issubclass(stratann.BudgetError, MemoryError)
    assert issubclass(stratann.DiskError, OSError)
    for name in ("InputError", "BudgetError", "CorruptIndexError", "DiskError", "QueryError"):
        assert issubclass(getattr(stratann, name), stratann.Error)


def test_mismatches_name_both_sides(index):
    with pytest.raises(stratann.InputError, match="queries have 25 dimensions, the index has 24"):
        index.search(np.zeros((2, 25), np.float32))
    with pytest.raises(
        stratann.InputError, match=r"queries are u8 \(uint8\), the index holds f32.*astype\(np.float32\)"
    ):
        index.search(np.zeros((2, 24), np.uint8))
    with pytest.raises(stratann.InputError, match=r"shape \(1, 2, 24\)"):
        index.search(np.zeros((1, 2, 24), np.float32))
    base = np.zeros((4, 3), np.float32)
    with pytest.raises(stratann.InputError, match=r"has 2 dimensions.* has 3"):
        stratann.groundtruth(base, base[:, :2].copy(), k=1)


def test_bad_queries_are_named(index, queries):
    bad = queries[:5].copy()
    bad[3, 7] = np.inf
    with pytest.raises(stratann.InputError, match="query 3: component 7 is infinite"):
        index.search(bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"recall": 0.9, "search_list": 30}, "give one of them"),
        ({"stop_slack": 0.1}, "goes with search_list"),
        ({"recall": 1.5}, "recall is 1.5"),
        ({"mode": "slow"}, "mode is"),
        ({"width": 0}, "width"),
        ({"io": "floppy"}, "io is"),
        ({"progress": 3}, "progress is 3"),
    ],
)
def test_bad_search_options(index, queries, options, message):
    with pytest.raises(stratann.InputError, match=message):
        index.search(queries, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tree"}, 'kind is "tree"'),
        ({"metric": "l1"}, 'metric is "l1"'),
        ({"code_kind": "opq"}, "code_kind is gone: every kind builds codes of bits .* choose their size by code_bytes"),
        ({"on_bad_row": "cry"}, "on_bad_row"),
        ({"ram_budget": "many"}, 'ram_budget: "many" is not a unit of size'),
        ({"ram_budget": -1}, "ram_budget is -1"),
        ({"degree": 1}, "degree is 1"),
        ({"ids": np.arange(9)}, "ids has 9 ids for 40 rows"),
        ({"ids": np.zeros(40, np.uint64)}, "ids: rows 0 and 1 have the same id 0"),
        ({"ids": np.arange(40) - 3}, "negative id -3"),
        ({"ids": np.arange(40.0)}, "one uint64 per row"),
    ],
)
def test_bad_build_options_leave_nothing(tmp_path, options, message):
    with pytest.raises(stratann.InputError, match=message):
        stratann.build(vectors(1, 40, 8), tmp_path / "i", **options)
    assert not (tmp_path / "i").exists()


def test_budgets_name_what_would_do(tmp_path, graph_path, base):
    with pytest.raises(stratann.BudgetError, match=r"ram_budget=\d+MiB or more"):
        stratann.build(base, tmp_path / "i", ram_budget="2MiB")
    with pytest.raises(stratann.BudgetError, match=r"ram_budget=\d+MiB or more"):
        stratann.open(graph_path, ram_budget=1 << 20)


def test_a_flipped_bit_is_found(tmp_path):
    base = vectors(13, 500, 16)
    stratann.build(base, tmp_path / "i", "disk-graph", calibration_queries=0, degree=16, build_list=32)
    codes = next(f for f in (tmp_path / "i").iterdir() if "codes" in f.name)
    data = bytearray(codes.read_bytes())
    data[100] ^= 1
    codes.write_bytes(data)
    with pytest.raises(stratann.CorruptIndexError, match=r"codes.*damaged"):
        stratann.open(tmp_path / "i")


def test_queries_that_meet_a_damaged_block_fail_by_number(tmp_path):
    base = vectors(13, 400, 64)
    stratann.build(base, tmp_path / "i", kind="flat")
    blocks = next(f for f in (tmp_path / "i").iterdir() if "blocks" in f.name)
    data = bytearray(blocks.read_bytes())
    data[5000] ^= 1
    blocks.write_bytes(data)
    with pytest.raises(
        stratann.QueryError, match=r"2 of 2 queries failed, the first is query 0: .*blocks"
    ) as raised:
        stratann.open(tmp_path / "i").search(base[:2], k=3)
    assert [number for number, _ in raised.value.failed] == [0, 1]
    assert np.isinf(raised.value.result.distances).all()


def test_what_is_no_index_says_so(tmp_path):
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path)
    with pytest.raises(stratann.InputError, match="nowhere"):
        stratann.open(tmp_path / "nowhere")
    (tmp_path / "base.fbin").write_bytes(b"\x02\x00\x00\x00\x02\x00\x00\x00\x00")
    with pytest.raises(stratann.InputError, match="truncated"):
        stratann.build(tmp_path / "base.fbin", tmp_path / "i")
    with pytest.raises(stratann.InputError, match=r"named .u8bin"):
        stratann.write_vectors(tmp_path / "x.fbin", np.zeros((2, 2), np.uint8))


def test_files_are_replaced_on_request_only(tmp_path):
    path, ones, twos = tmp_path / "x.u8bin", np.ones((2, 2), np.uint8), np.full((2, 2), 2, np.uint8)
    stratann.write_vectors(path, ones)
    with pytest.raises(stratann.InputError, match="force=True"):
        stratann.write_vectors(path, twos)
    np.testing.assert_array_equal(stratann.read_vectors(path), ones)
    stratann.write_vectors(path, twos, force=True)
    np.testing.assert_array_equal(stratann.read_vectors(path), twos)
    (tmp_path / "link.u8bin").symlink_to(path)
    with pytest.raises(stratann.InputError, match="symbolic link"):
        stratann.write_vectors(tmp_path / "link.u8bin", ones, force=True)
    with pytest.raises(stratann.InputError, match="other files"):
        stratann.build(ones, tmp_path, kind="flat", force=True)


FULL = """
import resource, sys, numpy as np, stratann
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    stratann.build(np.ones((20_000, 64), np.float32), sys.argv[1], kind="flat")
except stratann.DiskError as e:
    print(isinstance(e, OSError), e)
"""


def test_writes_that_fail_are_the_disks_fault(tmp_path):
    """A limit on the length of files stands in for a disk that is full."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "i")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("True writing "), run.stdout + run.stderr
    assert "resume=True" in run.stdout
    with pytest.raises(stratann.InputError, match="not an index"):
        stratann.open(tmp_path / "i")

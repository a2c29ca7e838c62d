"""The script in the README about a Parquet file with texts: short, and quick for 12,000 rows."""

import re
import subprocess
import sys

import numpy as np
import pytest
from folders import ROOT

import stratann


def test_the_script_of_the_readme_runs(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    code = re.search(r"```python\n(import pyarrow.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[1]
    assert len(code.splitlines()) <= 20
    rows = 12_000
    embeddings = np.random.default_rng(1).standard_normal((rows, 384), np.float32)
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.uint64()),
            "title": [f"text number {row}" for row in range(rows)],
            "price": [float(row % 100) for row in range(rows)],
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(embeddings.reshape(-1)), 384),
        }
    )
    parquet.write_table(table, tmp_path / "texts.parquet")
    path = ":".join(path for path in sys.path if path)
    # A limit against one that never ends; it takes a few seconds.
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 5 and lines[0].startswith(("0 ", "mine ")) and lines[1].startswith(("0 ", "mine "))
    assert "text number" in run.stdout and "of my own" in run.stdout
    with stratann.Client(tmp_path / "texts.data") as client:
        texts = client.collection("texts")
        assert len(texts) == rows * 90 // 100 + 1
        # It was indexed as it was written, or will be: the filter finds the same.
        assert texts.count(filter="price < 50 and title match 'number 7'") >= 1

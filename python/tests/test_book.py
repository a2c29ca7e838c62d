"""Commands in the README and in the book run.

Every fenced block names its language. Those of a shell and of Python run in a scratch folder, in the order of the file,
with small vectors from the sample. A block that cannot run is marked in the line before it: <!-- not run: why -->
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import stratann

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted([ROOT / "README.md", *(ROOT / "docs" / "book").glob("*.md")])
#: The laboratory, which `make test-lab` compiles. Without it nothing runs the pages about it.
LAB = os.environ.get("STRATANN_LAB")
LAB_PAGES = {"lab.md", "paper-d-hnsw.md", "paper-fusionanns.md"}
#: Languages of blocks that are not commands.
SHOWN = {"json", "toml", "text"}
#: Files that must exist before the first block of a page.
PREPARED = {
    "README.md": ["sample"],
    "building.md": ["base.fbin"],
    "grid.md": ["base.fbin", "query.fbin"],
    "gpu.md": ["base.fbin", "query.fbin"],
    "remote.md": ["base.fbin", "query.fbin"],
    "searching.md": ["base.fbin", "query.fbin", "my.idx"],
    "benchmarking.md": ["query.fbin", "truth.ibin", "my.idx"],
    "lab.md": ["query.fbin"],
    "python.md": ["base.npy"],
    "serve.md": ["query.fbin", "my.idx"],
    "collections.md": ["base.fbin", "query.fbin", "base.npy"],
}
BLOCK = re.compile(r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


def blocks(path):
    text = path.read_text()
    found = [(m["mark"], m["language"], m["code"], text.count("\n", 0, m.start()) + 1) for m in BLOCK.finditer(text)]
    assert 2 * len(found) == len(re.findall(r"^```", text, re.M)), f"{path.name}: a fence that does not close"
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    base = stratann.read_vectors(ROOT / "sample" / "base.f16bin")[:1500].astype(np.float32)
    queries = stratann.read_vectors(ROOT / "sample" / "query.f16bin")[:40].astype(np.float32)
    stratann.write_vectors(folder / "base.fbin", base)
    stratann.write_vectors(folder / "query.fbin", queries)
    np.save(folder / "base.npy", base)
    stratann.build(base, folder / "my.idx", "disk-graph", "cosine")
    truth = stratann.groundtruth(base, queries, 100, "cosine")
    with open(folder / "truth.ibin", "wb") as file:
        for part in (np.uint32(truth.ids.shape), truth.ids.astype(np.uint32), truth.distances):
            file.write(part.tobytes())
    os.symlink(ROOT / "sample", folder / "sample")
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_fences_name_their_language(path):
    known = SHOWN | {"sh", "python"}
    wrong = [line for _, language, _, line in blocks(path) if language not in known]
    assert not wrong, f"{path.name}: blocks in lines {wrong} name no known language: {sorted(known)}"


def commands(path):
    return [b for b in blocks(path) if b[1] in ("sh", "python") and not b[0]]


RUN = [p for p in FILES if commands(p) and (LAB or p.name not in LAB_PAGES)]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_commands_run(path, prepared, tmp_path):
    program = os.environ.get("STRATANN_PROGRAM")
    if program is None:
        pytest.skip("STRATANN_PROGRAM does not name the program: make test-python")
    for name in PREPARED.get(path.name, []):
        copy = ["cp", "-a", str(prepared / name), str(tmp_path / name)]
        subprocess.run(copy, check=True)
    (tmp_path / "bin").mkdir()
    os.symlink(program, tmp_path / "bin" / "stratann")
    if LAB:
        os.symlink(LAB, tmp_path / "bin" / "stratann-lab")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shell, python = [], []
    for _, language, code, line in commands(path):
        code = code.replace("8700", port)
        (shell if language == "sh" else python).append(f"# line {line}\n{code}")
    if shell:
        # A command that depends on a server waits for it.
        health = f"127.0.0.1:{port}/v1/health"
        wait = f"curl -s --retry 30 --retry-delay 1 --retry-connrefused {health} >/dev/null"
        script = "".join(shell).replace(" &\n", f" &\n{wait}\n")
        run(["bash", "-euo", "pipefail", "-c", script], tmp_path)
    if python:
        run([sys.executable, "-c", "".join(python)], tmp_path)


def run(args, folder):
    """Runs a command; what it leaves running ends with it."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    child = subprocess.Popen(
        args,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        # A server that is left running holds the pipe open.
        status = child.wait(300)
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    told, _ = child.communicate()
    assert status == 0, f"{args[-1]}\n{told}"


def test_a_mark_is_visible_and_tells_why():
    text = "<!-- not run: a reason -->\n```sh\nfalse\n```\n\n```sh\ntrue\n```\n"
    assert [bool(m["mark"]) for m in BLOCK.finditer(text)] == [True, False]

"""Data folders for tests: opened in this process, or by a server."""

import contextlib
import json
import os
import pathlib
import subprocess

import pytest

import stratann

ROOT = pathlib.Path(__file__).parents[2]
#: Ways to open a data folder.
DOORS = ["embedded", "remote"]


def program():
    """The program ``stratann``: named by STRATANN_PROGRAM, or as the build leaves it."""
    named = os.environ.get("STRATANN_PROGRAM")
    places = [named] if named else [ROOT / "target" / kind / "stratann" for kind in ("release", "debug")]
    found = next((str(p) for p in places if pathlib.Path(p).exists()), None)
    if found is None:
        pytest.skip("the program stratann is not built; run `make build`, or set STRATANN_PROGRAM")
    return found


@contextlib.contextmanager
def serving(path, *options):
    """A server of a data folder; gives its URL."""
    command = [program(), "serve", "--json", "--until-eof", "--data", str(path), "--http", "127.0.0.1:0", *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, **pipes)
    try:
        line = process.stdout.readline()
        assert line.startswith("{"), line
        yield f"http://{json.loads(line)['http']}"
    finally:
        process.communicate()
    assert process.returncode == 0


@contextlib.contextmanager
def opened(door, path):
    """A client of a data folder by one of the ways."""
    if door == "embedded":
        with stratann.Client(path) as client:
            yield client
    else:
        # As many results as in this process, and room for large payloads.
        with serving(path, "--max-k", "16384", "--http-memory", "512MiB") as url, stratann.Client(url) as client:
            yield client

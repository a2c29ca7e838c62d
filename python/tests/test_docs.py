"""Examples in the docstrings run, and the types that are promised are those that are there."""

import doctest
import importlib
import pathlib
import subprocess
import sys

import pytest

import stratann

MODULES = [
    "stratann",
    "stratann._arrays",
    "stratann._build",
    "stratann._database",
    "stratann._index",
    "stratann.filters",
    "stratann.ray",
    "stratann.sklearn",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name == "stratann.ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'stratann[ray]'")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0


def test_readme():
    readme = pathlib.Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 5 and result.failed == 0


def test_all_is_documented():
    for name in stratann.__all__:
        if name != "__version__":
            assert getattr(stratann, name).__doc__, name


def test_package_is_marked_as_typed():
    assert (pathlib.Path(stratann.__file__).parent / "py.typed").exists()


def test_stub_of_the_compiled_half_matches_it():
    pytest.importorskip("mypy")
    run = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "stratann._stratann"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr

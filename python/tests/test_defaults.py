"""The program and the package have the same defaults."""

import inspect
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import stratann

#: Arguments that only one of the two has, or that name files; and what has another form there.
OWN = {
    "build": {"base", "path", "progress", "force", "resume", "baselines"}
    | {"payload", "schema", "vector_column"},
    "groundtruth": {"base", "queries", "progress"},
    "search": {"self", "queries", "progress", "busy_last", "baseline", "only", "without"}
    | {"filter", "indexed_only", "with_payload"},
    "tune": {"self", "queries", "truth", "progress"},
    # Baselines are the laboratory's.
    "open": {"path", "baselines"},
}
#: What the package leaves to the engine, as the engine has it.
ENGINE = {
    "degree": "64",
    "build_list": "128",
    "alpha": "1.2",
    "passes": "1",
    "codes": "ram",
    "head_share": "0.05",
    "calibration_queries": "500",
    "plan": "auto",
    "nav_samples": "2",
    "width": "2 of a disk-graph that reads whole blocks, 8 of a flat, otherwise 1",
    "early_stop": "never",
    "stop_slack": "never",
    "recall": "0.95",
    "device": "0",
    "list_share": "0.1",
    "epsilon": "0.15",
    "representatives": "sample",
    "m": "16",
    "ef_construction": "200",
    "batch": "2000",
    "doorbell": "64",
    "bounds": "both",
    "local_list": "32",
    "votes": "64",
    "fan_out": "1",
    "epoch_queries": "2000",
    "scorer": "auto",
}
#: Switches: the program names what they turn off.
SWITCHES = {
    "pack": "--no-pack",
    "compress": "--no-compress",
    "prune_dimension": "--no-prune-dimension",
    "prune_code": "--no-prune-code",
    "prune_vector": "--no-prune-vector",
    "prewarm": "--no-prewarm",
    "balance": "--no-balance",
    "pipeline": "--no-pipeline",
    "chain": "--no-chain",
    "head": "--no-head",
    "whole_blocks": "--no-whole-blocks",
    "seeds": "--no-seeds",
    "stop_early": "--no-early-stop",
    "weights": "--no-weights",
    "merge": "--no-merge",
    "scan_clusters": "--no-scan-clusters",
}


def options(program, command):
    """Long options of a command with their default in `--help`; None for those without."""
    text = subprocess.run([program, command, "--help-all"], capture_output=True, check=True, text=True).stdout
    found = {}
    for part in re.split(r"\n\s+(?=(?:-\w, )?--[a-z]|-k <)", text.split("Options:", 1)[1]):
        name = re.match(r"(?:-\w, )?--([a-z-]+)", part) or re.match(r"-(k)\b", part)
        default = re.search(r"\[default: ([^\]]+)\]", part)
        if name:
            found[name[1]] = default[1] if default else None
    short = re.search(r"\n\s+-k <[^\n]+\n(?:(?!\n\s+-).)*?\[default: ([^\]]+)\]", text, re.S)
    if short:
        found["k"] = short[1]
    return found


@pytest.fixture(scope="module")
def program():
    path = os.environ.get("STRATANN_PROGRAM")
    if path is None:
        pytest.skip("STRATANN_PROGRAM does not name the program: make test-python")
    return path


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("build", stratann.build),
        ("groundtruth", stratann.groundtruth),
        ("search", stratann.Index.search),
        ("tune", stratann.Index.tune),
        ("search", stratann.open),
    ],
)
def test_defaults_are_those_of_the_program(program, command, function):
    told = options(program, command)
    own = OWN["open" if function is stratann.open else function.__name__]
    compared = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in own or parameter.kind is parameter.VAR_KEYWORD:
            continue
        default = parameter.default
        option = {"learning": "frozen"}.get(name, name.replace("_", "-"))
        if name in SWITCHES:
            assert default in (None, True) and SWITCHES[name].lstrip("-") in told
            continue
        assert option in told, f"{command} has no --{option}"
        expected = told[option]
        if default is None and name in ENGINE and expected is not None and "," not in expected:
            default = ENGINE[name]
        if isinstance(default, (list, tuple)):
            default = ",".join(str(x) for x in default)
        # A text such as "all cores" describes what the package calls None; a switch is off.
        is_described = default is None and (expected is None or not re.fullmatch(r"[\d.]+|[a-z0-9-]+", expected))
        is_off = expected is None and default in (False, "on")
        assert is_described or is_off or str(default) == expected, (command, name, default, expected)
        compared.append(name)
    assert len(compared) >= 3


def test_the_first_examples_need_no_kind(program):
    text = subprocess.run([program, "build", "--help-all"], capture_output=True, check=True, text=True).stdout
    assert inspect.signature(stratann.build).parameters["kind"].default == "auto"
    first = text.split("Examples:")[1].strip().splitlines()[0]
    assert "--kind" not in first


def test_the_large_set_of_the_demo_fits_in_its_budget(program, tmp_path):
    demo = (Path(__file__).parents[2] / "demo" / "demo.py").read_text()
    rows, dim, budget = (
        int(re.search(rf'"--{option}",[^\n]*default="?([\d_]+)', demo)[1]) for option in ("rows", "dim", "ram-budget")
    )
    base = tmp_path / "large.fbin"
    with base.open("wb") as out:
        out.write(np.array([rows, dim], np.int32).tobytes())
        out.truncate(8 + 4 * rows * dim)
    build = ["build", base, "-o", tmp_path / "index", "--kind", "disk-graph", "--degree", "32", "--build-list", "64"]
    words = [program, *build, "--calibration-queries", "100", "--ram-budget", "1MiB"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert int(re.search(r"give --ram-budget (\d+)MiB", refused.stderr)[1]) <= budget

"""Compile the Rust tests and run their programs, as many at a time as there are cores.

`cargo test` runs one program after another, and many of ours wait for servers. The longest of the last run begin first.
Usage: .ci/test_programs.py ARGUMENTS of `cargo test`, such as --workspace --locked
"""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ALONE = {"cli/tests/remote_faults.rs"}
"""Programs whose servers and clients wait for each other against a clock: nothing runs beside them."""
TIMES = Path("target/test-times.json")
"""Seconds of each program in the last run."""


def programs(arguments):
    """Compile the tests. Return name, file and folder of each program."""
    command = ["cargo", "test", *arguments, "--no-run", "--message-format", "json-render-diagnostics"]
    compiled = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if compiled.returncode:
        sys.exit(compiled.returncode)
    found = []
    for line in compiled.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["executable"] and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            source = Path(message["target"]["src_path"]).relative_to(folder)
            found.append((f"{folder.name}/{source}", message["executable"], folder))
    return found


def run(program):
    """Run one program. Return its name, its exit status, its output and its seconds."""
    name, executable, folder = program
    started = time.monotonic()
    done = subprocess.run(
        [executable], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    return name, done.returncode, done.stdout, time.monotonic() - started


def counts(output):
    """Return the numbers of passed, failed and ignored tests."""
    summary = re.findall(r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored", output, re.MULTILINE)
    return tuple(sum(int(numbers[i]) for numbers in summary) for i in range(3))


def ran(all_programs):
    """Run programs, those of ALONE first, and yield what `run` returns as they end."""
    yield from (run(program) for program in all_programs if program[0] in ALONE)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        others = [pool.submit(run, program) for program in all_programs if program[0] not in ALONE]
        yield from (done.result() for done in as_completed(others))


def main():
    """Run all programs, print a line for each and the whole output of those that fail."""
    all_programs = programs(sys.argv[1:])
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    all_programs.sort(key=lambda program: -times.get(program[0], 0.0))
    total, failed = [0, 0, 0], []
    for name, status, output, seconds in ran(all_programs):
        numbers, times[name] = counts(output), round(seconds, 1)
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        print(f"{'FAILED' if status else 'ok':6} {numbers[0]:4} passed {seconds:6.1f} s  {name}", flush=True)
        if status:
            failed.append(name)
            print(output, flush=True)
    TIMES.write_text(json.dumps(times, indent=1, sort_keys=True))
    print("{} passed, {} failed, {} ignored in {} programs".format(*total, len(all_programs)))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

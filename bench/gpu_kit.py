"""Pack the program, the GPU's test programs and gpu_run.py in target/gpu-kit.tar.gz, for a machine without cargo.

There: tar xzf gpu-kit.tar.gz && python3 gpu-kit/gpu_run.py
"""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "target/gpu-kit"
COMPILED = ["cargo", "test", "--release", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]
# The kernels' tests, and those of whole searches.
PACKAGES = [["--package", "stratann-gpu"], ["--package", "stratann-engine", "--test", "gpu"]]


def test_programs():
    """Names of the GPU's test programs, and where cargo put them."""
    messages = []
    for package in PACKAGES:
        done = subprocess.run([*COMPILED, *package], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit("gpu_kit.py: the tests do not compile")
        messages += [json.loads(line) for line in done.stdout.splitlines()]
    made = [one for one in messages if one["reason"] == "compiler-artifact" and one["executable"]]
    tests = [one for one in made if one["profile"]["test"]]
    return {one["target"]["name"]: Path(one["executable"]) for one in tests}


def main():
    tests = test_programs()
    if not tests:
        sys.exit("gpu_kit.py: cargo made no test programs")
    shutil.rmtree(KIT, ignore_errors=True)
    (KIT / "tests").mkdir(parents=True)
    shutil.copy2(ROOT / "target/release/stratann", KIT / "stratann")
    shutil.copy2(ROOT / "bench/gpu_run.py", KIT / "gpu_run.py")
    for name, path in tests.items():
        shutil.copy2(path, KIT / "tests" / name)
        subprocess.run(["strip", KIT / "tests" / name], check=False)
    packed = ROOT / "target/gpu-kit.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(KIT, "gpu-kit")
    print(f"{packed.relative_to(ROOT)}: {packed.stat().st_size / 1e6:.0f} MB, {len(tests)} test programs")
    print("on a machine with a GPU: tar xzf gpu-kit.tar.gz && python3 gpu-kit/gpu_run.py")


if __name__ == "__main__":
    main()

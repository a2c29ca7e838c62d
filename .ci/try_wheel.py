"""Install a wheel into an environment without a compiler, and use the program and the package.

    python3 .ci/try_wheel.py WHEEL ENVIRONMENT

ENVIRONMENT is a folder that is made anew. The programs of the environment are the only ones on the path, so pip cannot
compile anything. Program and package must give the same answers.
"""

import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "sample"
INSTALL_S_MAX = 60
PACKAGE = """
import sys, numpy as np, stratann
queries = stratann.read_vectors(sys.argv[2])
with stratann.open(sys.argv[1]) as index:
    ids = index.search(queries, k=10, recall=0.95, width=1).ids
assert stratann.__version__ == sys.argv[4], stratann.__version__
by_program = np.fromfile(sys.argv[3], np.uint32)
rows, k = by_program[:2]
assert (by_program[2:2 + rows * k].reshape(rows, k) == ids).all(), "package and program give different answers"
stratann.build(queries, sys.argv[1] + ".python", metric="cosine", force=True)
"""


def main():
    wheel, environment = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    venv.create(environment, clear=True, with_pip=True)
    programs = environment / "bin"

    def run(name, *arguments):
        done = subprocess.run([programs / name, *arguments], env={"PATH": str(programs)}, cwd=environment, check=True,
                              stdout=subprocess.PIPE, text=True)
        return done.stdout

    # What the package needs is fetched first, as the time of its download says nothing about the wheel.
    run("python", "-m", "pip", "--quiet", "install", "--constraint", ROOT / ".ci" / "constraints.txt", "numpy")
    start = time.monotonic()
    run("python", "-m", "pip", "--quiet", "install", "--no-deps", wheel)
    seconds = time.monotonic() - start
    if seconds > INSTALL_S_MAX:
        sys.exit(f"the wheel was installed in {seconds:.0f} s, more than {INSTALL_S_MAX}")

    version = run("stratann", "--version").split()[1]
    base, queries, answers = SAMPLE / "base.f16bin", SAMPLE / "query.f16bin", "answers.ibin"
    build = ["--kind", "disk-graph", "--metric", "cosine", "--quiet"]
    # A fixed width gives equal answers, whatever else is in flight.
    search = ["-k", "10", "--recall", "0.95", "--width", "1", "--quiet"]
    run("stratann", "build", base, "-o", "sample.idx", *build)
    run("stratann", "search", "sample.idx", queries, "-o", answers, *search)
    run("python", "-c", PACKAGE, "sample.idx", queries, answers, version)
    print(f"{wheel.name}: installed in {seconds:.1f} s without a compiler; program and package gave the same answers")


if __name__ == "__main__":
    main()

"""A plugin of pytest that records the tests that were left out, for `make test` to list."""

import os


def pytest_runtest_logreport(report):
    """Record a test that was left out."""
    if report.skipped and not hasattr(report, "wasxfail"):
        record(report)


def pytest_collectreport(report):
    """Record a file of tests that was left out."""
    if report.skipped:
        record(report)


def record(report):
    """Append a line to the file that STRATANN_LEFT_OUT names: what is missing, the test, the reason."""
    path = os.environ.get("STRATANN_LEFT_OUT")
    if path:
        is_peer = report.nodeid.startswith("bench/")
        need = "a peer to compare with" if is_peer else "a Python package or a program"
        why = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        with open(path, "a", encoding="utf-8") as file:
            file.write("\t".join([need, report.nodeid, " ".join(why.split())]) + "\n")

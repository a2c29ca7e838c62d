"""Memory of this process."""

from __future__ import annotations

import os
import resource
import sys


def resident_kb() -> float:
    """Resident memory in kB, now; where there is no /proc, the most it ever was."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 1024 if sys.platform == "darwin" else float(most)

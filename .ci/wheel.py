"""Put the program into a wheel, as the script `stratann`: pip then installs it beside the Python package.

    python3 .ci/wheel.py WHEEL PROGRAM

Refuses a program that needs a newer glibc than the tag of the wheel promises.
"""

import base64
import hashlib
import re
import sys
import zipfile
from pathlib import Path

EXECUTABLE = 0o100755 << 16
# As maturin dates files, so that equal programs give equal wheels.
DATE = (1980, 1, 1, 0, 0, 0)


def glibc_of_tag(wheel):
    """The minor version of glibc 2 in a tag such as manylinux_2_34_x86_64."""
    tag = re.search(r"manylinux_2_(\d+)_", wheel.name)
    if tag is None:
        sys.exit(f"{wheel.name}: no manylinux tag; maturin names what the extension needs")
    return int(tag[1])


def glibc_needed(program):
    """The newest minor version of glibc 2 among the versions of symbols that a program imports."""
    return max(int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", program))


def with_program(wheel, program):
    """Adds the program and its line in RECORD, in a file beside the wheel that then replaces it."""
    name, version = wheel.name.split("-")[:2]
    script, record = f"{name}-{version}.data/scripts/stratann", f"{name}-{version}.dist-info/RECORD"
    digest = base64.urlsafe_b64encode(hashlib.sha256(program).digest()).rstrip(b"=").decode()
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename == script:
                sys.exit(f"{wheel.name} has the program already")
            if entry.filename == record:
                data += f"{script},sha256={digest},{len(program)}\n".encode()
            new.writestr(entry, data)
        entry = zipfile.ZipInfo(script, DATE)
        entry.external_attr = EXECUTABLE
        entry.compress_type = zipfile.ZIP_DEFLATED
        new.writestr(entry, program)
    partial.replace(wheel)


def main():
    wheel, program = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()
    promised, needed = glibc_of_tag(wheel), glibc_needed(program)
    if needed > promised:
        sys.exit(f"{sys.argv[2]} needs glibc 2.{needed}, but {wheel.name} promises 2.{promised}")
    with_program(wheel, program)
    megabytes = wheel.stat().st_size / 1e6
    print(f"{wheel} ({megabytes:.0f} MB): the package and the program, for glibc 2.{promised} or newer")


if __name__ == "__main__":
    main()

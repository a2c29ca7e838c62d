"""Compile the GPU kernels with NVRTC for several architectures, without a GPU, and write what came of it to a log.

Needs the package nvidia-cuda-nvrtc-cu12; `make gpu-compile` installs it into bench/.venv-gpu. This program installs
nothing.
"""

import argparse
import ctypes
import datetime
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "nvidia-cuda-nvrtc-cu12"
KERNELS = ROOT / "crates/gpu/kernels"
# Compiled as one text, in this order; src/layout.rs has the same list.
FILES = ["common.cuh", "score.cu", "vectors.cu", "bits.cu"]
# PTX for the oldest ones, which a driver compiles further; machine code for the others.
ARCHITECTURES = ["compute_70", "compute_75", "sm_80", "sm_86", "sm_90", "sm_100"]
# As src/cuda/nvrtc.rs gives them: floats must have the bits of the CPU.
OPTIONS = ["--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--fmad=false"]


def library():
    """Load NVRTC after its library of built-in functions, which it would not find by itself."""
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        sys.exit(f"gpu_compile.py: the package {PACKAGE} is missing; run `make gpu-compile`, which installs it")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    builtins = sorted(p for p in folder.glob("libnvrtc-builtins.so*"))
    compilers = sorted(p for p in folder.glob("libnvrtc.so*"))
    if not builtins or not compilers:
        sys.exit(f"gpu_compile.py: {folder} has no libnvrtc; install {PACKAGE} again")
    ctypes.CDLL(str(builtins[0]), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(compilers[0]))


class Compiler:
    """NVRTC; a failing call ends the program with its name."""

    def __init__(self, nvrtc):
        self.nvrtc = nvrtc
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.nvrtc, name)(*arguments)
        if code != 0:
            sys.exit(f"gpu_compile.py: {name} failed: {self.nvrtc.nvrtcGetErrorString(code).decode()}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def knows(self, architecture):
        count = ctypes.c_int()
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", known)
        return int(architecture.split("_")[1]) in list(known)

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw[: size.value]

    def compile(self, source, name, architecture):
        """Return whether it compiled, the bytes of the result, and the log."""
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        # Code for a machine is made with a report of registers and memory.
        is_machine = architecture.startswith("sm_")
        options = [f"--gpu-architecture={architecture}", *OPTIONS, *(["--ptxas-options=-v"] if is_machine else [])]
        pointers = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        failed = self.nvrtc.nvrtcCompileProgram(program, len(options), pointers) != 0
        log = self.text(program, "ProgramLog").rstrip(b"\0\n ").decode()
        size = 0 if failed else len(self.text(program, "CUBIN" if is_machine else "PTX"))
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return not failed, size, log


def usage(log):
    """One line for each kernel from the report of ptxas; the other lines are warnings."""
    lines, kernel = [], None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found[1]
        elif kernel and "Used" in line and "registers" in line:
            lines.append(f"  {kernel}: {line.split('info', 1)[-1].lstrip(' :')}")
        elif "spill" in line and " 0 bytes spill stores, 0 bytes spill loads" not in line:
            lines.append(f"  {kernel}: {line.strip()}")
        elif "warning" in line or "error" in line:
            lines.append(f"  {line.strip()}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "bench/results/gpu-compile.txt")
    output = parser.parse_args().output
    compiler = Compiler(library())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [f"NVRTC {compiler.version()}, {date}, options {' '.join(OPTIONS)}"]
    failures = 0
    source = "".join((KERNELS / name).read_text() for name in FILES)
    for architecture in ARCHITECTURES:
        if not compiler.knows(architecture):
            lines.append(f"{architecture}: not supported by this NVRTC")
            continue
        done, size, log = compiler.compile(source.encode(), "kernels.cu", architecture)
        failures += not done
        form = "bytes of machine code" if architecture.startswith("sm_") else "bytes of PTX"
        lines.append(f"{architecture}: {f'{size} {form}' if done else 'FAILED'}")
        lines += usage(log) if done else [f"  {line}" for line in log.splitlines()]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

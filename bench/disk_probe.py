"""The disk's own limit: random 4 KiB reads with O_DIRECT at a fixed queue depth, through Linux native AIO.

The kernel interface is called directly (io_setup, io_submit, io_getevents; struct iocb of linux/aio_abi.h), because
a pool of Python threads is slower than the disk.
"""
import ctypes
import mmap
import os
import platform
import random
import struct
import time

PAGE_BYTES = 4096
DEPTH = 128
BATCH = 32                       # completions waited for, and reads sent, per system call
SYSCALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # setup, destroy, getevents, submit
IOCB = struct.Struct("<QIiHhIQQqQII")    # data, key, rw_flags, opcode, prio, fd, buf, nbytes, offset, ...
EVENT_BYTES = 32                         # u64 data, u64 iocb, i64 result, i64 result2
IOCB_CMD_PREAD = 0


class ProbeError(OSError):
    """The probe cannot run here; the message is one line."""


class AioReader:
    """DEPTH reads of random pages of one file, kept in flight."""

    def __init__(self, path, seed):
        self.calls = SYSCALLS.get(platform.machine())
        if self.calls is None:
            raise ProbeError(f"no native AIO numbers for {platform.machine()}; the disk's limit is not measured")
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.random = random.Random(seed)
        self.pages = os.path.getsize(path) // PAGE_BYTES
        if self.pages == 0:
            raise ProbeError(f"{path}: smaller than one page; give a larger file")
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as e:
            raise ProbeError(f"{path}: O_DIRECT is refused ({e.strerror}); use a folder on a real disk") from e
        self.buffer = mmap.mmap(-1, DEPTH * PAGE_BYTES)         # anonymous maps are page-aligned
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.iocbs = ctypes.create_string_buffer(DEPTH * IOCB.size)
        self.events = ctypes.create_string_buffer(DEPTH * EVENT_BYTES)
        self.context = ctypes.c_ulong(0)
        self.call(0, DEPTH, ctypes.byref(self.context))

    def call(self, which, *args):
        got = self.libc.syscall(ctypes.c_long(self.calls[which]), *args)
        if got < 0:
            raise ProbeError(f"native AIO: {os.strerror(ctypes.get_errno())}; the disk's limit is not measured")
        return got

    def submit(self, slots):
        base = ctypes.addressof(self.iocbs)
        for slot in slots:
            offset = self.random.randrange(self.pages) * PAGE_BYTES
            IOCB.pack_into(self.iocbs, slot * IOCB.size, slot, 0, 0, IOCB_CMD_PREAD, 0, self.fd,
                           self.address + slot * PAGE_BYTES, PAGE_BYTES, offset, 0, 0, 0)
        pointers = (ctypes.c_uint64 * len(slots))(*(base + slot * IOCB.size for slot in slots))
        sent = self.call(3, self.context, ctypes.c_long(len(slots)), pointers)
        if sent < len(slots):
            self.submit(slots[sent:])

    def wait(self, at_least):
        got = self.call(2, self.context, ctypes.c_long(at_least), ctypes.c_long(DEPTH), self.events, None)
        slots = []
        for i in range(got):
            slot, _, result, _ = struct.unpack_from("<QQqq", self.events, i * EVENT_BYTES)
            if result != PAGE_BYTES:
                raise ProbeError(f"a 4 KiB read returned {result}; the disk's limit is not measured")
            slots.append(slot)
        return slots

    def close(self):
        self.libc.syscall(ctypes.c_long(self.calls[1]), self.context)   # waits for what is in flight
        os.close(self.fd)


def random_read_iops(path, seconds=1.0, seed=1):
    """4 KiB random reads a second from `path` with O_DIRECT at queue depth 128."""
    reader = AioReader(path, seed)
    try:
        reader.submit(range(DEPTH))
        done, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            slots = reader.wait(BATCH)
            done += len(slots)
            reader.submit(slots)
        return done / (time.perf_counter() - start)
    finally:
        reader.close()

"""Write the vectors and queries of the old indexes: whole numbers from a fixed generator, in clusters."""

import struct
import sys
from pathlib import Path

ROWS, QUERIES, DIMENSIONS, CLUSTERS = 400, 12, 16, 20
MASK = (1 << 64) - 1


def numbers(seed):
    """Numbers from 0 to 2^32 - 1 that look random and are the same everywhere (splitmix64)."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield (z ^ (z >> 31)) >> 32


def write(folder, name, count, seed):
    """Write the same vectors as u8 and as f32. Sums of such small whole numbers are exact in f32."""
    centres = numbers(1)
    centres = [[90 + next(centres) % 76 for _ in range(DIMENSIONS)] for _ in range(CLUSTERS)]
    noise = numbers(seed)
    rows = []
    for _ in range(count):
        centre = centres[next(noise) % CLUSTERS]
        rows.append([x + sum(next(noise) % 32 for _ in range(3)) - 46 for x in centre])
    head = struct.pack("<II", count, DIMENSIONS)
    (folder / f"{name}.u8bin").write_bytes(head + b"".join(bytes(row) for row in rows))
    floats = b"".join(struct.pack(f"<{DIMENSIONS}f", *row) for row in rows)
    (folder / f"{name}.fbin").write_bytes(head + floats)


folder = Path(sys.argv[1])
write(folder, "base", ROWS, 2)
write(folder, "query", QUERIES, 3)

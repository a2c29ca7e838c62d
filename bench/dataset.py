"""The inputs of a comparison: base, queries of the set and out-of-distribution ones, exact answers."""
import numpy as np
import program
import vectors

# Answers that are kept for made queries: as many as the sets' own files have.
TRUTH_K = 100
# Lengths of the common shift and of the noise of each query, in root mean square distances of a row from the mean.
SHIFT, NOISE = 0.5, 0.5
OUTSIDE_TEXT = (f"each query moved by one common vector and by noise of its own, of {SHIFT} and {NOISE} times the "
                "distance of a typical row from the mean")


def find_data(args):
    """(base, queries, groundtruth) paths."""
    if not args.data.is_dir():
        if args.queries is None or args.groundtruth is None:
            raise vectors.DataError(f"{args.data}: is no folder; give --queries and --groundtruth as well")
        return args.data, args.queries, args.groundtruth
    return *find_vectors(args), args.groundtruth or args.data / "groundtruth.ibin"


def find_vectors(args):
    """(base, queries) paths."""
    if not args.data.is_dir():
        if args.queries is None:
            raise vectors.DataError(f"{args.data}: is no folder; give --queries as well")
        return args.data, args.queries

    def only(stem):
        hits = [p for p in sorted(args.data.glob(stem + ".*")) if p.suffix in vectors.DTYPES]
        if len(hits) != 1:
            raise vectors.DataError(f"{args.data}: {len(hits)} vector files named {stem}.*; exactly one is needed")
        return hits[0]

    return only("base"), args.queries or only("query")


class Base:
    """The vectors, and float32 copies (unit length for cosine) made once for peers that need them."""

    def __init__(self, args, base):
        self.base = base
        self.name = args.data.resolve().name if args.data.is_dir() else base.stem
        self.metric, self.out, self.k = args.metric, args.out, args.k
        (self.n, self.dim), self.dtype = self.shape_of(base)
        if not 1 <= args.k <= self.n:
            raise vectors.DataError(f"--k {args.k}: must lie between 1 and the {self.n} base vectors")
        self.copies = {}

    @staticmethod
    def shape_of(path):
        rows = vectors.open_vectors(path)
        return rows.shape, rows.dtype.name

    def needs_copy(self, spec):
        return self.metric == "cosine" or self.dtype not in spec.dtypes

    def form_for(self, spec, path):
        """The file of vectors in the form that this peer takes."""
        return self.copy_of(path) if self.needs_copy(spec) else path

    def copy_of(self, path):
        if path not in self.copies:
            folder = self.out / "converted"
            folder.mkdir(parents=True, exist_ok=True)
            copy = folder / f"{path.stem}.fbin"
            write_if_changed(path, copy, self.metric == "cosine")
            self.copies[path] = copy
        return self.copies[path]


class Data(Base):
    """The inputs of a comparison."""

    def __init__(self, args):
        base, queries, truth = find_data(args)
        super().__init__(args, base)
        self.sources = {"in": QuerySet(self, "in", queries, truth, None)}
        if "out" in args.distributions:
            self.sources["out"] = outside(self, args)

    def first_queries(self, source, count):
        """A file of the first queries of a set, for latencies alone."""
        if not 0 < count < source.count:
            return source.queries.resolve()
        few = self.out / f"first-{source.queries.name}"
        vectors.write_vectors(few, vectors.open_vectors(source.queries)[:count])
        return few


class QuerySet:
    """Queries with their exact answers; `text` says how they were made, None for those of the set."""

    def __init__(self, data, kind, queries, truth, text):
        self.kind, self.queries, self.truth, self.text = kind, queries, truth, text
        (self.count, dim), dtype = data.shape_of(queries)
        if dim != data.dim or dtype != data.dtype:
            raise vectors.DataError(f"{queries}: {dtype} x {dim}, but the base is {data.dtype} x {data.dim}; "
                                    "they must agree")
        vectors.read_groundtruth(truth, self.count, data.k)


def outside(data, args):
    """Out-of-distribution queries, given by --ood-queries or made of the set's own."""
    data.out.mkdir(parents=True, exist_ok=True)
    queries, text = args.ood_queries, "queries of a file of their own"
    if queries is None:
        queries, text = data.out / f"outside{data.base.suffix}", OUTSIDE_TEXT
        made = moved(vectors.open_vectors(data.base), vectors.open_vectors(data.sources["in"].queries),
                     args.metric == "cosine", args.seed)
        vectors.write_vectors(queries, made)
    truth = data.out / "outside-groundtruth.ibin"
    try:
        program.call(args.stratann, "groundtruth", data.base, queries, "-o", truth, "--metric", args.metric,
                     "-k", min(TRUTH_K, data.n), "--force", "--quiet")
    except (OSError, RuntimeError) as e:
        raise vectors.DataError(f"no exact answers for out-of-distribution queries: {e}; leave them out with "
                                "--distributions in") from e
    return QuerySet(data, "out", queries, truth, text)


def moved(base, queries, is_cosine, seed):
    """The queries moved away from the base: by a gap that all share, as between texts and images, and by noise."""
    rng = np.random.default_rng(seed)
    rows, asked = (vectors.unit_rows(x) if is_cosine else np.asarray(x, np.float32) for x in (base, queries))
    typical = float(np.sqrt(np.mean(np.sum((rows - rows.mean(0)) ** 2, axis=1))))
    gap = vectors.unit_rows(rng.standard_normal((1, rows.shape[1])))
    noise = vectors.unit_rows(rng.standard_normal(asked.shape))
    made = asked + typical * (SHIFT * gap + NOISE * noise)
    if is_cosine:
        made = vectors.unit_rows(made)
    if np.issubdtype(base.dtype, np.integer):
        limits = np.iinfo(base.dtype)
        made = np.clip(np.rint(made), limits.min, limits.max)
    return made.astype(base.dtype)


def write_if_changed(source, copy, normalise):
    """Write the float32 copy unless an identical one is there; its time stamp then stays, and so do the indexes."""
    fresh = copy.with_suffix(".new.fbin")
    vectors.write_vectors(fresh, vectors.open_vectors(source), normalise)
    if copy.exists() and copy.read_bytes() == fresh.read_bytes():
        fresh.unlink()
    else:
        fresh.replace(copy)

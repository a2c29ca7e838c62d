//! The names that parameters may have as values.

choices! {
    /// Kind of index
    pub enum IndexKind {
        /// A graph on disk with codes in RAM
        DiskGraph = "disk-graph",
        /// Inverted lists on disk, each with its own local index: for RAM far below the size of the vectors
        HybridIvf = "hybrid-ivf",
        /// Inverted lists in RAM, which drop most vectors after a few of their components
        GridIvf = "grid-ivf",
        /// Codes on a GPU or in RAM, which get ids alone; vectors on disk, read in mini-batches
        GpuIvf = "gpu-ivf",
        /// Clusters of vectors, each with an HNSW, for memory nodes: loaded as batches of queries need them
        RemoteHnsw = "remote-hnsw",
        /// All vectors on disk, scanned: exact, for small sets
        Flat = "flat",
    }
}

choices! {
    /// Distance between vectors
    pub enum MetricName {
        /// Squared Euclidean distance
        L2 = "l2",
        /// Minus the inner product
        Ip = "ip",
        /// One minus the cosine of the angle
        Cosine = "cosine",
    }
}

choices! {
    /// Type of a component
    pub enum ElementName {
        /// 4 bytes
        F32 = "f32",
        /// 2 bytes
        F16 = "f16",
        /// A byte from 0 to 255
        U8 = "u8",
        /// A byte from -128 to 127
        I8 = "i8",
    }
}

choices! {
    /// Treatment of rows without valid distances
    pub enum OnBadRow {
        /// Stop at the first bad row and name it
        Fail = "fail",
        /// Leave bad rows out and count them
        Skip = "skip",
    }
}

choices! {
    /// Place of the codes during searches
    pub enum CodePlace {
        /// All codes in RAM: fewest bytes read, smallest index
        Ram = "ram",
        /// Each block stores the codes of all neighbours: a quarter of the RAM, an index about three times as large
        Disk = "disk",
    }
}

choices! {
    /// Local index of inverted lists
    pub enum PlanName {
        /// The cheapest local index for each list
        Auto = "auto",
        /// Scan all codes of a list
        UniformFlat = "uniform-flat",
        /// A graph over the vectors of each list
        UniformGraph = "uniform-graph",
        /// Divide each list into sub-lists
        UniformIvf = "uniform-ivf",
    }
}

choices! {
    /// Choice of the vectors that represent clusters
    pub enum Representatives {
        /// Vectors drawn uniformly
        Sample = "sample",
        /// The vectors nearest to the centroids of k-means: clusters of more equal size
        Kmeans = "kmeans",
    }
}

choices! {
    /// Whether an open index learns from its queries
    pub enum Learn {
        /// It learns while queries have a hot spot, and uses what it learnt
        On = "on",
        /// It learns from every epoch, hot spot or not (to compare)
        Always = "always",
        /// It uses what it learnt from earlier queries, without learning more
        Frozen = "frozen",
        /// It neither uses nor updates what it learnt
        Off = "off",
    }
}

impl Learn {
    /// Whether queries are counted.
    pub const fn counts(self) -> bool {
        matches!(self, Learn::On | Learn::Always)
    }
}

choices! {
    /// What ranks candidates by their codes
    pub enum ScorerName {
        /// A GPU where one can be used, otherwise this machine's threads
        Auto = "auto",
        /// A GPU, or an error
        Cuda = "cuda",
        /// This machine's threads
        Cpu = "cpu",
    }
}

choices! {
    /// Files of an index for searches as other systems do them
    pub enum BaselineFiles {
        /// None
        None = "none",
        /// All, on disk
        Disk = "disk",
        /// All, and lists of vectors are read into RAM
        Ram = "ram",
    }
}

choices! {
    /// When a step uses what has arrived
    pub enum ModeName {
        /// A step waits for all of its reads: equal results on every run
        Barrier = "barrier",
        /// A step uses the reads that have arrived: lower latency, a few more reads
        Eager = "eager",
    }
}

choices! {
    /// Policy that admits the next query
    pub enum Admission {
        /// One query at a time per thread
        One = "one",
        /// A batch at a time: the next batch starts when the previous one has ended
        Batch = "batch",
        /// A fixed number: a query that ends is replaced at once
        Fixed = "fixed",
    }
}

choices! {
    /// I/O back end
    pub enum IoName {
        /// io_uring where the kernel allows it, else pread
        Auto = "auto",
        /// io_uring, or an error
        Uring = "uring",
        /// Threads that call pread
        Pread = "pread",
    }
}

choices! {
    /// Order in which lists are visited
    pub enum OrderName {
        /// By distance to the centroid, less a gain for sampled vectors that were found
        Evidence = "evidence",
        /// By the number of sampled vectors that were found, as in the paper
        SampleHits = "votes",
        /// By the distance to the centroid, without the navigation graph
        Centroid = "centroid",
        /// By the expected number of results
        Expected = "expected",
    }
}

choices! {
    /// Bounds that prune vectors before they are read
    pub enum BoundsName {
        /// None: every vector of a visited list is read
        Off = "off",
        /// Distances to centroids, as in the paper
        Centroid = "centroid",
        /// Codes with the radius of their error
        Code = "code",
        /// Both
        Both = "both",
    }
}

choices! {
    /// How several indexes are searched as one
    pub enum PartsName {
        /// The recall is that of the whole. The largest index is searched first, and its results bound the others
        Whole = "whole",
        /// Each by itself, with the recall for its own results
        Each = "each",
    }
}

choices! {
    /// What ends re-ranking
    pub enum RuleName {
        /// A fixed number of candidates is re-ranked
        Static = "static",
        /// Mini-batches that change few results end it (FusionANNS, algorithm 1)
        Changes = "changes",
        /// The code distance of the next candidate ends it
        Margin = "margin",
    }
}

choices! {
    /// Search in a `gpu-ivf` as another system does, or without some techniques
    pub enum BaselineName {
        /// Lists of vectors on disk are read whole (SPANN)
        Spann = "spann",
        /// Lists of codes on disk are read whole, then each candidate is read
        HiPq = "hi+pq",
        /// As spann, with vectors copied to a GPU
        HiGpu = "hi+gpu",
        /// As hi+pq, with codes copied to a GPU
        HiPqGpu = "hi+pq+gpu",
        /// Lists of vectors in RAM, copied to a GPU (RUMMY)
        RummyLike = "rummy-like",
        /// Codes in RAM, a fixed number of candidates, a read for each
        MiCpu = "mi-cpu",
        /// The same with codes on a GPU
        MiGpu = "mi-gpu",
        /// The smallest fixed number of candidates that reaches the recall
        StaticN = "static-n",
        /// Algorithm 1 with a read for each candidate
        NoDedup = "no-dedup",
        /// Algorithm 1 over vectors in the order of rows
        NoLayout = "no-layout",
    }
}

choices! {
    /// How batches are loaded in a `remote-hnsw`, without some techniques
    pub enum LoadBaseline {
        /// Each query reads its clusters for itself, one after another, without a cache
        Naive = "naive",
        /// A round trip for each cluster
        NoDoorbell = "no-doorbell",
        /// A doorbell begins when the one before has been searched
        NoOverlap = "no-overlap",
    }
}

choices! {
    /// Way to load clusters of a simulated remote-hnsw
    pub enum LoadWayName {
        /// That of the kind
        Own = "none",
        /// Each query reads its clusters for itself, one after another, without a cache
        Naive = "naive",
        /// A round trip for each cluster
        NoDoorbell = "no-doorbell",
        /// A doorbell begins when the one before has been searched
        NoOverlap = "no-overlap",
    }
}

choices! {
    /// Choice of the first server of a block or list
    pub enum MethodName {
        /// A graph partition of many small cells, refined block by block
        Cells = "cells",
        /// k-means with one centroid per server, balanced
        Kmeans = "kmeans",
        /// By hash (to compare)
        Random = "random",
    }
}

choices! {
    /// Division of a grid-ivf over servers
    pub enum DivisionName {
        /// The cheapest grid of rows of lists and slices of components, by what a sample of queries costs
        Harmony = "harmony",
        /// Whole lists on each server
        Vector = "vector",
        /// A slice of the components of every list on each server
        Dimension = "dimension",
        /// An equal share of the vectors of every list on each server
        Striped = "striped",
    }
}

choices! {
    /// Form of the candidates in a hand-over
    pub enum CarryName {
        /// Ids only: shorter; the receiver recomputes distances from codes. Not with --codes disk
        Ids = "ids",
        /// Ids and distances: twice as long, and nothing is recomputed
        Distances = "distances",
    }
}

choices! {
    /// Way of partial results at a hand-over
    pub enum ResultsName {
        /// With the query
        Along = "along",
        /// Directly to the server that received the query: shorter hand-overs, more messages
        Origin = "origin",
    }
}

choices! {
    /// Use of lists and vectors of other servers
    pub enum RemoteName {
        /// Score them where they are, on all servers at once
        Score = "score",
        /// Score them where they are, on one server after another: each prunes by the scores of those before
        Forward = "forward",
        /// Hand the query over to the server of the next list
        HandOver = "hand-over",
    }
}

choices! {
    /// Way in which simulated servers search together
    pub enum SimulatedMode {
        /// One index; a query is handed over to the server that holds its next blocks
        Baton = "baton",
        /// One index; lists and vectors of other servers are scored there, those of all servers at once (hybrid-ivf)
        Score = "score",
        /// As score, but one job visits the servers one after another, and the last replies (hybrid-ivf)
        Forward = "forward",
        /// One index per server; a query is sent to all, and the origin merges their results
        ScatterGather = "scatter-gather",
        /// One index; a query stays on one server and fetches remote blocks
        Fetch = "fetch",
    }
}

choices! {
    /// Simulated server that receives a query
    pub enum EntryName {
        /// Round robin
        Any = "any",
        /// A server that holds the first block: a client that knows the head graph could choose it
        Nearest = "nearest",
    }
}

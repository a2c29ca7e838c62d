//! Parameters of searches.

use crate::choices::IndexKind::{DiskGraph, Flat, GpuIvf, GridIvf, HybridIvf, RemoteHnsw};
use crate::choices::{
    Admission, BaselineName, BoundsName, IoName, LoadBaseline, ModeName, OrderName, PartsName, RuleName,
};
use crate::{AutoOr, Fixed, Level, Place, Stage};

params! {
    /// Search
    #[derive(Copy)]
    pub struct SearchSettings: Search of [] {
        /// Results per query
        k: usize = 10,
            { short: Some('k'), option: Some(""), range: 1.0..=16_384.0, also: &[Stage::Bench],
              places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Target recall@k, above 0 and up to 1; several values make one run each
        ///
        /// The build measured a curve of recall and cost. This option picks the beam length and the stop rule from it.
        /// `stratann tune` measures the curve again with your queries.
        recall: Option<f64> = None,
            { shown: "SHARE", range: f64::MIN_POSITIVE..=1.0, usual: "0.95", is_swept: true,
              conflicts: &["search_list", "nprobe", "stop_slack"], also: &[Stage::Simulate, Stage::Bench],
              places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Length of the beam, instead of a recall (L in DiskANN, ef in HNSW); several values make one run each
        search_list: Option<u32> = None,
            { shown: "L", is_swept: true, kinds: &[DiskGraph, Flat], role: "effort",
              conflicts: &["nprobe"], also: &[Stage::Simulate, Stage::Bench], level: Level::Usual };
        /// Most inverted lists to visit, or clusters to search in a remote-hnsw; several values make one run each
        nprobe: Option<u32> = None,
            { shown: "N", is_swept: true, kinds: &[HybridIvf, GridIvf, GpuIvf, RemoteHnsw],
              role: "effort", also: &[Stage::Simulate, Stage::Bench], level: Level::Usual };
        /// With --nprobe: stop after this share of the lists, consecutively without a new result
        early_stop: Option<f32> = None,
            { shown: "SHARE", usual: "never", kinds: &[HybridIvf], role: "stop rule", requires: &["nprobe"],
              also: &[Stage::Simulate, Stage::Bench] };
        /// With --search-list: stop when the best unread candidate is this many standard errors of its code distance
        /// farther than the k-th result
        ///
        /// With --nprobe: prune vectors that are this many standard errors beyond the k-th result [default: prune by
        /// exact bounds only]
        stop_slack: Option<f32> = None,
            { shown: "X", usual: "never", kinds: &[DiskGraph, HybridIvf], requires: &["search_list", "nprobe"],
              also: &[Stage::Simulate, Stage::Bench] };
        /// Concurrent reads of a query; auto reads more at once when few queries are in flight
        ///
        /// With auto, answers depend on the number of queries in flight and on their order. With a number, and by
        /// default, they do not, in the mode barrier.
        width: Option<AutoOr<u32>> = None, { shown: "auto|N", range: 1.0..=64.0, level: Level::Usual,
              usual: "2 of a disk-graph that reads whole blocks, 8 of a flat, otherwise 1" };
        /// Whether a step waits for all of its reads
        mode: ModeName = ModeName::Barrier, { level: Level::Usual };
        /// Threads
        threads: Option<usize> = None,
            { range: 1.0..=1024.0, usual: "all cores", in_requests: false, also: &[Stage::Serve],
              places: Place::ALL_AND_COLLECTIONS, level: Level::Usual };
        /// Queries in flight per thread
        in_flight: Option<usize> = None,
            { shown: "N", range: 1.0..=4096.0, in_requests: false, also: &[Stage::Serve], level: Level::Usual,
              usual: "disk-graph 64; hybrid-ivf 16, or 8 where its codes do not fit in RAM; flat 1" };
        /// Policy that admits the next query
        admission: Admission = Admission::Fixed,
            { places: Place::LOCAL, in_requests: false, level: Level::Research };
        /// I/O back end
        io: IoName = IoName::Auto,
            { places: Place::LOCAL, in_requests: false,
              also: &[Stage::Serve, Stage::Bench, Stage::Doctor, Stage::Profile] };
        /// Make equal reads that are under way once
        merge: bool = true,
            { off: "Make each read, even while another query makes the same one (to compare)",
              places: Place::LOCAL, in_requests: false, also: &[Stage::Serve], level: Level::Research };
        /// Way to search several indexes as one, with --also, or the segments of a collection
        parts: PartsName = PartsName::Whole,
            { places: Place::LOCAL_AND_COLLECTIONS, in_requests: false, level: Level::Research };
    }
}

params! {
    /// Clients of servers
    #[derive(Copy)]
    pub struct ClientSettings: Search of [] {
        /// Ask for one query at a time of each server, which then waits for the others (to compare)
        blocking: bool = false,
            { places: &[Place::Servers], in_requests: false, in_python: false, conflicts: &["in_flight"],
              level: Level::Research };
        /// Of several servers, ask the one where the search enters, or those that have the clusters of a query cached
        affinity: bool = true,
            { off: "Ask several servers in turn, whatever they have (to compare)", kinds: &[DiskGraph, RemoteHnsw],
              places: &[Place::Servers], in_requests: false, in_python: false, level: Level::Research };
    }
}

params! {
    /// Techniques of disk-graph
    #[derive(Copy, Eq)]
    pub struct GraphSwitches: Search of [DiskGraph] {
        /// Stop after this many consecutive reads without a new result; 0 for never
        patience: Option<u32> = None,
            { shown: "READS", usual: "from the curve; never with --search-list", role: "stop rule",
              also: &[Stage::Simulate, Stage::Bench] };
        /// Take the first candidates from the head graph
        head: bool = true,
            { off: "Start at the medoid instead of the head graph (to compare)", level: Level::Research };
        /// Use all nodes of a block that was read
        whole_blocks: bool = true,
            { off: "Use only the requested nodes of a block (to compare)", level: Level::Research };
        /// With a filter whose rows lie far from the query, walk once more, among them
        seeds: bool = true,
            { off: "Compare the codes of all rows of a filter where a walk finds too few, instead of a walk among them \
              (to compare)", level: Level::Research };
        /// Walk by codes alone, and compare so many candidates in the end; with 0, compare nodes as their blocks arrive
        rerank: Option<u32> = None,
            { shown: "N", range: 0.0..=65_536.0, usual: "as calibrated in memory; 0 from disk" };
    }
}

params! {
    /// Techniques of hybrid-ivf
    #[derive(Copy, Eq)]
    pub struct ListSwitches: Search of [HybridIvf] {
        /// Order in which lists are visited
        order: Option<OrderName> = None, { usual: "chosen by calibration", level: Level::Research };
        /// Stop where lists bring nothing more
        stop_early: bool = true,
            { option: Some("no-early-stop"), off: "Visit all lists that --nprobe or --recall allow",
              level: Level::Research };
        /// Weigh a list without a new result by what was to be expected of it, for the early stop
        weights: bool = true,
            { off: "Count every list without a new result as one towards the early stop, as in the paper, without \
              weights", level: Level::Research };
        /// Bounds that prune vectors before they are read; they never change a result
        bounds: BoundsName = BoundsName::Both, { level: Level::Research };
        /// Sub-lists to scan in a divided list
        local_lists: Option<u32> = None, { shown: "N", usual: "as planned" };
        /// Length of the beam in a list with a graph
        local_list: Option<u32> = None, { shown: "L", usual: "32", role: "beam in a list" };
        /// Sampled vectors of the navigation graph that count towards the rank of their lists
        votes: Option<u32> = None, { shown: "N", usual: "64" };
    }
    shorthands {
        /// Rank lists by the distance to their centroids only, without the navigation graph
        no_reorder: [("order", Fixed::Name("centroid"))];
        /// Read every vector of a visited list
        no_bounds: [("bounds", Fixed::Name("off"))];
    }
}

params! {
    /// Techniques of grid-ivf
    #[derive(Copy, Eq)]
    pub struct GridSwitches: Search of [GridIvf] {
        /// Drop a vector as soon as its first components exceed the threshold
        prune_dimension: bool = true,
            { off: "Compare vectors whole, whatever their first components say", level: Level::Research };
        /// Drop a vector by its code, before any of its components is read
        prune_code: bool = true, { off: "Compare components only, whatever codes say", level: Level::Research };
        /// Let the threshold fall from list to list
        prune_vector: bool = true,
            { off: "Keep the first threshold, which does not fall from list to list", level: Level::Research };
        /// Score some vectors of every list first, for a first threshold
        prewarm: bool = true, { off: "Start without a threshold", level: Level::Research };
        /// Rows of lists to visit at a time, where they are divided over servers
        ///
        /// More of them take less time and more work: each row is pruned by those that have ended.
        fan_out: u8 = 1, { shown: "F", range: 1.0..=64.0, places: &[Place::Servers] };
        /// Let slices on busy servers come last
        busy_last: bool = true, { option: Some(""), places: &[Place::Servers], level: Level::Research };
        /// Let the loads of servers count: for the order of slices, and among replicas
        balance: bool = true,
            { off: "Choose servers without regard to their load: neither the order of slices nor a replica depends on \
              it", places: &[Place::Servers], level: Level::Research };
        /// Visit the slices of a row one after another, each pruning for those that follow
        pipeline: bool = true,
            { off: "Score all slices of a row at once, and add their sums where the query is",
              places: &[Place::Servers], level: Level::Research };
        /// Let one job visit the rows of whole lists one after another, and reply at the end of its way
        chain: bool = true,
            { off: "Ask for each row of whole lists by itself, with a reply from each server",
              places: &[Place::Servers], level: Level::Research };
    }
    shorthands {
        /// Compare all components of all vectors of the lists
        no_prune: [("prune_dimension", Fixed::Flag(false)), ("prune_vector", Fixed::Flag(false))];
        /// Visit slices of components in their order, whatever the load of their servers
        static_order: [("busy_last", Fixed::Flag(false))];
    }
}

params! {
    /// Techniques of gpu-ivf
    #[derive(Copy)]
    pub struct GpuSwitches: Search of [GpuIvf] {
        /// Search as another system does, or without some techniques
        baseline: Option<BaselineName> = None,
            { is_of_lab: true, shown: "NAME", places: &[Place::Folder], in_requests: false, conflicts: &["rule"],
              level: Level::Research };
        /// What ends re-ranking
        rule: Option<RuleName> = None,
            { usual: "the cheaper of margin and changes with --recall, margin otherwise" };
        /// Most candidates to re-rank
        candidates: Option<u32> = None,
            { shown: "N", range: 1.0..=65_536.0, usual: "from the curve; 16 k + 128 with --nprobe" };
        /// Candidates of a mini-batch
        batch_size: Option<u32> = None,
            { shown: "N", range: 1.0..=1024.0, usual: "from the curve; 16 with --nprobe" };
        /// With --rule changes: a mini-batch that changes at most this share of the results is without effect
        epsilon_stop: Option<f32> = None, { shown: "SHARE", range: 0.0..=1.0 };
        /// With --rule changes: stop after this many mini-batches without effect, consecutively
        beta: Option<u32> = None, { shown: "N", role: "stop rule" };
        /// With --rule margin: stop when the next candidate is farther by its code than the last result by so many
        /// standard errors of its distance; with codes that were trained, by this share of the distance
        margin: Option<f32> = None, { shown: "N", range: -1.0..=f64::INFINITY, role: "stop rule" };
        /// Use all vectors of a block that was read
        whole_blocks: bool = true,
            { off: "Use only the requested nodes of a block (to compare)", level: Level::Research };
    }
}

params! {
    /// Searches in remote-hnsw
    #[derive(Copy, Eq)]
    pub struct RemoteSwitches: Search of [RemoteHnsw] {
        /// Length of the beam in each cluster (efSearch)
        ef: Option<u32> = None,
            { shown: "EF", range: 1.0..=65_536.0, usual: "from the curve; 48 or 1.5 k with --nprobe",
              role: "beam in a list", also: &[Stage::Simulate] };
        /// Compare all vectors of a cluster where that is faster than a search of its graph
        scan_clusters: bool = true,
            { off: "Search the graph of a cluster, however few vectors it has (to compare)",
              level: Level::Research };
    }
}

params! {
    /// Loads of batches in remote-hnsw
    #[derive(Copy, Eq)]
    pub struct BatchSettings: Search of [RemoteHnsw] {
        /// Queries of a batch: each cluster that they need is read once for all of them
        batch: Option<u32> = None,
            { shown: "N", range: 1.0..=65_536.0, usual: "2000", places: Place::LOCAL, in_requests: false,
              also: &[Stage::Serve, Stage::Simulate] };
        /// Most reads of a round trip. While one is searched the next is under way: the memory of both is needed.
        /// Without this option --ram-budget may shorten them
        doorbell: Option<u32> = None,
            { shown: "D", range: 1.0..=512.0, usual: "64", places: Place::LOCAL, in_requests: false,
              also: &[Stage::Serve, Stage::Simulate] };
        /// Load batches without some techniques
        baseline: Option<LoadBaseline> = None,
            { is_of_lab: true, shown: "NAME", places: Place::LOCAL, in_requests: false, level: Level::Research };
    }
}

//! Parameters of simulations of a cluster.
//!
//! Replicas, overlap, method and seed are rows of partitions; what a search visits is in rows of searches.

use std::path::PathBuf;

use crate::Level;
use crate::choices::IndexKind::GridIvf;
use crate::choices::{CarryName, DivisionName, EntryName, LoadWayName, ResultsName, SimulatedMode};

params! {
    /// Simulated servers
    #[derive()]
    pub struct SimulateSettings: Simulate of [DiskGraph, HybridIvf, GridIvf] {
        /// Numbers of servers, such as 1,4,10
        servers: Vec<usize> = Vec::new(), { shown: "N,…", usual: "none", role: "servers", level: Level::Usual };
        /// Modes to simulate, in turn
        mode: Vec<SimulatedMode> = Vec::new(), { shown: "MODE,…", usual: "baton", level: Level::Usual };
        /// Mean arrival rate, queries per second; several values make one run each
        ///
        /// Queries arrive at random times (Poisson), whether or not earlier ones are answered. Without a rate, 16
        /// queries per thread are in flight, which finds the highest throughput.
        rate: Vec<f64> = Vec::new(),
            { shown: "R,…", range: f64::MIN_POSITIVE..=1e9, usual: "as many as the servers can take",
              role: "load", level: Level::Usual };
        /// Queries in flight in the whole cluster, without --rate
        in_flight: Option<usize> = None,
            { shown: "N", range: 1.0..=4096.0, usual: "16 per thread", role: "load", conflicts: &["rate"] };
        /// Plan of a grid-ivf
        partition: DivisionName = DivisionName::Harmony,
            { shown: "MODE", kinds: &[GridIvf], role: "division" };
        /// Server that receives a query; the way from there counts as a hand-over
        entry: EntryName = EntryName::Any;
        /// Concurrent reads of a query
        width: u32 = 1, { shown: "N", range: 1.0..=64.0 };
        /// What a hand-over contains of its candidates
        carry: Option<CarryName> = None, { usual: "ids; distances where codes are on disk" };
        /// Where partial results go at a hand-over
        results: ResultsName = ResultsName::Along;
    }
}

params! {
    /// Scatter-gather
    #[derive()]
    pub struct ScatterSettings: Simulate of [DiskGraph, HybridIvf, GridIvf] {
        /// Separate indexes from `cluster partition --scatter-gather`
        partitions: Option<PathBuf> = None, { shown: "DIR", usual: "built in the folder for temporary files" };
        /// Length of the beam on each server
        partition_list: Option<u32> = None,
            { shown: "L", range: 1.0..=65_536.0, usual: "that of the single index" };
        /// Find the shortest beam whose merged results have the recall of --mode baton, less at most 0.002
        match_recall: bool = false, { requires: &["groundtruth"], conflicts: &["partition_list"] };
    }
}

params! {
    /// Every simulation
    #[derive()]
    pub struct RunSettings: Simulate of [] {
        /// Results per query
        k: usize = 10, { short: Some('k'), option: Some(""), range: 1.0..=16_384.0, level: Level::Usual };
        /// Ground truth from `stratann groundtruth`, to measure recall@k
        groundtruth: Option<PathBuf> = None, { shown: "GT", usual: "none", level: Level::Usual };
        /// Read costs from FILE: a "costs" object, or a whole document of an earlier `simulate --json`
        costs: Option<PathBuf> = None, { shown: "FILE", conflicts: &["calibrate"] };
        /// Threads of each server
        threads: Option<usize> = None, { range: 1.0..=1024.0, usual: "the cores of this machine" };
        /// Take latency and bandwidth between servers from FILE: what `doctor --link --json` printed
        link: Option<PathBuf> = None, { shown: "FILE" };
        /// Latency between servers, one way, microseconds
        network_latency_us: Option<f64> = None, { shown: "US", usual: "20, assumed" };
        /// Bandwidth of each server's link, Gbit/s
        network_gbps: Option<f64> = None, { shown: "GBPS", usual: "25, assumed" };
    }
}

params! {
    /// Times of servers (measured on this machine, unless given)
    #[derive(Copy)]
    pub struct ServerCosts: Simulate of [DiskGraph, HybridIvf, GridIvf] {
        /// Compare the model with this machine: also search for real, and report the error of one simulated server
        calibrate: bool = false;
        /// Count only: no measurements and no times
        no_times: bool = false, { conflicts: &["costs", "calibrate", "rate"] };
        /// Reads per second of each server's disk
        disk_iops: Option<f64> = None, { shown: "N", usual: "measured on this disk" };
        /// Latency of a single read, microseconds
        disk_latency_us: Option<f64> = None, { shown: "US", usual: "measured on this disk" };
        /// Megabytes per second of each server's disk, beyond the first page of a read
        disk_mb_per_s: Option<f64> = None, { shown: "MB", usual: "measured on this disk" };
        /// Processor time of a client's request on the server that receives it, microseconds
        request_us: Option<f64> = None, { shown: "US", usual: "0" };
        /// Servers on each host, which share its cores and its disk
        servers_per_host: Option<usize> = None, { shown: "N", usual: "1" };
        /// Cores of each host
        cores_per_host: Option<usize> = None, { shown: "N", usual: "as many as its servers have threads" };
    }
}

params! {
    /// Memory nodes of remote-hnsw
    #[derive()]
    pub struct NodesSettings: Simulate of [RemoteHnsw] {
        /// Numbers of compute nodes, such as 1,2,4,8
        compute_nodes: Vec<usize> = Vec::new(),
            { shown: "N,…", range: 1.0..=1024.0, usual: "none", role: "servers", level: Level::Usual };
        /// Memory nodes that the groups are divided over
        memory_nodes: usize = 1, { shown: "N", range: 1.0..=256.0 };
        /// Clients of all compute nodes, each of which waits for its batch before it asks for the next
        clients: usize = 24, { shown: "N", range: 1.0..=1024.0, role: "load" };
        /// Batches that a compute node has under way at the same time, each with an equal share of its threads
        batches_at_once: usize = 1, { shown: "N", range: 1.0..=1024.0 };
        /// Ways to load clusters, in turn; each is compared with naive where that is one of them
        baseline: Vec<LoadWayName> = Vec::new(),
            { shown: "NAME,…", usual: "none", is_of_lab: true, level: Level::Research };
        /// Share of all clusters that the cache of a compute node has room for
        cache_share: f64 = 0.1, { shown: "SHARE", range: 0.0..=1.0 };
        /// What a range of a doorbell costs the link of its memory node besides its bytes, nanoseconds
        range_ns: Option<u64> = None, { shown: "NS", usual: "50" };
    }
}

//! Parameters of measurements: of searches, of recall, of ground truth, of one query and of a machine.

use std::path::PathBuf;

use crate::choices::{Admission, ModeName};
use crate::{AutoOr, Level, Place, Unit};

params! {
    /// Settings of a sweep
    #[derive()]
    pub struct SweepSettings: Bench of [] {
        /// Ground truth, to measure recall@k
        groundtruth: Option<PathBuf> = None,
            { shown: "GT", usual: "none", places: Place::FOLDERS, level: Level::Usual };
        /// Queries in flight per thread; several values make one run each
        in_flight: Vec<usize> = Vec::new(),
            { shown: "N", range: 1.0..=4096.0, places: Place::FOLDERS, level: Level::Usual,
              usual: "disk-graph 64; hybrid-ivf 16, or 8 where its codes do not fit in RAM; flat 1" };
        /// Concurrent reads of a query; several values make one run each
        width: Vec<AutoOr<u32>> = Vec::new(),
            { shown: "auto|N", range: 1.0..=64.0, usual: "that of `search`", level: Level::Usual };
        /// Policy that admits the next query; several make one run each
        admission: Vec<Admission> = Vec::new(),
            { usual: "fixed", places: Place::FOLDERS, level: Level::Usual };
        /// Whether a step waits for all of its reads; several make one run each
        mode: Vec<ModeName> = Vec::new(), { usual: "barrier", level: Level::Usual };
        /// Runs of every combination
        rounds: u32 = 3, { range: 1.0..=1000.0, places: Place::FOLDERS, level: Level::Usual };
        /// Threads
        threads: Option<usize> = None,
            { range: 1.0..=1024.0, usual: "all cores", places: Place::FOLDERS, level: Level::Usual };
        /// Limit of all memory of index and search
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", places: Place::FOLDERS, level: Level::Usual };
        /// Memory that caches blocks: a size, or auto; 0 by default, so that every read is made and counted
        cache_budget: AutoOr<u64> = AutoOr::Given(0),
            { shown: "auto|SIZE", unit: Unit::Bytes, places: Place::FOLDERS, level: Level::Usual };
    }
}

params! {
    /// Open loop, with --connect
    #[derive()]
    pub struct OpenLoopSettings: Bench of [] {
        /// Mean arrival rate, queries per second; several values make one run each
        rate: Vec<f64> = Vec::new(),
            { shown: "R", range: f64::MIN_POSITIVE..=1e6, usual: "none", places: &[Place::Servers],
              level: Level::Usual };
        /// Duration of the arrivals
        seconds: f64 = 10.0,
            { shown: "S", range: f64::MIN_POSITIVE..=1e6, places: &[Place::Servers], requires: &["rate"],
              level: Level::Usual };
        /// Connections, which limit concurrent requests
        clients: usize = 64,
            { shown: "N", range: 1.0..=1024.0, places: &[Place::Servers], requires: &["rate"],
              level: Level::Usual };
        /// Seed of the arrivals
        seed: u64 = 1, { places: &[Place::Servers], requires: &["rate"], level: Level::Usual };
        /// Of several servers, ask the one where the search of a disk-graph enters, or those of a remote-hnsw that have
        /// the clusters of a query cached
        affinity: bool = true,
            { off: "Ask several servers in turn, whatever they have (to compare)",
              places: &[Place::Servers], requires: &["rate"], level: Level::Usual };
    }
}

params! {
    /// Measurements of the recall curve
    #[derive()]
    pub struct TuneSettings: Tune of [] {
        /// Queries of your own
        queries: Option<PathBuf> = None,
            { shown: "FILE", usual: "rows of the index, each excluded from its own results", in_python: false,
              requires: &["groundtruth"], level: Level::Usual };
        /// Their ground truth from `stratann groundtruth`, with ids of the index
        groundtruth: Option<PathBuf> = None,
            { shown: "GT", usual: "none", in_python: false, requires: &["queries"], level: Level::Usual };
        /// Recalls at which the new curve is checked
        recall: Vec<f64> = Vec::new(),
            { shown: "SHARE", range: f64::MIN_POSITIVE..=1.0, usual: "0.9,0.95,0.99", level: Level::Usual };
        /// Values of k with their own curve; others use the next larger one
        k: Vec<u32> = Vec::new(),
            { short: Some('k'), option: Some(""), usual: "1,10,100", level: Level::Usual };
        /// Rows of the index to draw when no queries are given
        sample: usize = 1000, { shown: "N", level: Level::Usual };
        /// Seed of the sample of rows
        seed: u64 = 1, { level: Level::Usual };
        /// Limit of all memory
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", in_python: false, level: Level::Usual };
    }
}

params! {
    /// Ground truth
    #[derive()]
    pub struct TruthSettings: Truth of [] {
        /// Neighbours per query: at least the largest k of later searches
        k: usize = 100, { short: Some('k'), option: Some(""), level: Level::Usual };
        /// Limit of all memory, such as 512MiB
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", level: Level::Usual };
    }
}

params! {
    /// One query, or one plan
    #[derive(Copy)]
    pub struct ExplainSettings: Explain of [] {
        /// Number of the query, from 0
        query: usize = 0, { shown: "N", conflicts: &["plan"], level: Level::Usual };
        /// Explain the plan of a hybrid-ivf instead, or how a grid-ivf would be divided over servers
        plan: bool = false, { level: Level::Usual };
        /// With --plan of a grid-ivf: number of servers
        servers: usize = 4, { shown: "N", range: 1.0..=64.0, requires: &["plan"], level: Level::Usual };
        /// With --plan: number of queries or rows to measure with; 0 for none
        sample: usize = 200, { shown: "N", requires: &["plan"], level: Level::Usual };
        /// With --plan: seed of the sample of rows
        seed: u64 = 1, { shown: "N", requires: &["plan"], level: Level::Usual };
    }
}

params! {
    /// Examination of a machine
    #[derive()]
    pub struct DoctorSettings: Doctor of [] {
        /// A folder on the disk that will hold indexes
        path: PathBuf = ".".into(), { shown: "FOLDER", level: Level::Usual };
        /// Also measure latency and bandwidth to the host where `doctor --link-listen` runs, in two or three seconds
        link: Option<String> = None, { shown: "HOST:PORT", usual: "none", level: Level::Usual };
        /// Listen until one `doctor --link` has measured, and probe nothing else; everybody who reaches the address can
        link_listen: Option<String> = None,
            { shown: "HOST:PORT", usual: "none", conflicts: &["path", "io", "link"], level: Level::Usual };
    }
}

params! {
    /// Measurement of costs
    #[derive(Copy)]
    pub struct ProfileSettings: Profile of [] {
        /// Approximate duration of all measurements
        seconds: f64 = 30.0, { shown: "N", level: Level::Usual };
        /// Most bytes of the scratch file; at most a quarter of the free space is used
        scratch: Option<u64> = None, { shown: "SIZE", unit: Unit::Bytes, usual: "1GiB", level: Level::Usual };
    }
}

//! Parameters of an open index: of every search in it.

use crate::choices::{BaselineFiles, Learn, ScorerName};
use crate::{AutoOr, Fixed, Level, Place, Stage, Unit};

params! {
    /// Memory of an open index
    #[derive(Copy)]
    pub struct OpenSettings: Open of [] {
        /// Limit of all memory of index and search, such as 512MiB
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", places: Place::LOCAL_AND_COLLECTIONS,
              also: &[Stage::Serve], level: Level::Usual };
        /// Memory for what would be read: vectors and adjacency lists of a disk-graph, and a cache of blocks. A size,
        /// or auto for what the RAM budget leaves, and without one up to half of the memory that is available. With 0
        /// every read is made and counted
        cache_budget: AutoOr<u64> = AutoOr::Auto,
            { shown: "auto|SIZE", unit: Unit::Bytes, places: Place::LOCAL, level: Level::Usual };
        /// Move the index into memory first, or read all blocks into the cache, when there is room
        preload: bool = false, { places: Place::LOCAL };
    }
}

params! {
    /// Lists and learning of hybrid-ivf
    #[derive(Copy)]
    pub struct LearnSettings: Open of [HybridIvf] {
        /// Limit of the RAM for list codes, which then need no reads
        head_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "the rest of --ram-budget", places: &[Place::Folder] };
        /// Whether the index learns from its queries
        learning: Learn = Learn::On, { option: Some(""), places: Place::FOLDERS, also: &[Stage::Serve] };
        /// Queries per learning epoch
        epoch_queries: u32 = 2000,
            { shown: "N", range: 1.0..=f64::INFINITY, places: Place::FOLDERS, also: &[Stage::Serve],
              level: Level::Research };
        /// Hot vectors that are kept in RAM
        hot: Option<u32> = None,
            { shown: "N", usual: "one per ten nodes of its navigation graph", places: &[Place::Folder],
              level: Level::Research };
    }
    shorthands {
        /// Learn from every epoch, whether or not queries have a hot spot (to compare)
        always_learn: [("learning", Fixed::Name("always"))];
        /// Use what was learnt from earlier queries, without learning more
        frozen: [("learning", Fixed::Name("frozen"))];
        /// Neither use nor update what was learnt (to compare)
        no_learning: [("learning", Fixed::Name("off"))];
    }
}

params! {
    /// Scorer of gpu-ivf
    #[derive(Copy)]
    pub struct ScorerSettings: Open of [GpuIvf] {
        /// What ranks candidates by their codes; `stratann doctor` names the GPUs
        scorer: ScorerName = ScorerName::Auto, { places: &[Place::Folder], also: &[Stage::Serve] };
        /// Number of the GPU
        device: Option<u32> = None, { shown: "N", usual: "0", places: &[Place::Folder], also: &[Stage::Serve] };
        /// Limit of the GPU's memory, such as 8GiB
        gpu_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "nine tenths of what is free",
              places: &[Place::Folder], also: &[Stage::Serve] };
        /// Rank codes that do not fit on the GPU with this machine's threads; otherwise they are refused
        spill: bool = false, { places: &[Place::Folder], also: &[Stage::Serve] };
        /// Files for searches with `baseline` to open
        baselines: BaselineFiles = BaselineFiles::None,
            { is_of_lab: true, option: Some(""), places: &[Place::Folder] };
    }
}

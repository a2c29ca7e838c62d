//! Parameters of collections.

use std::path::PathBuf;

use crate::choices::{ElementName, MetricName};
use crate::{Level, Place, Unit};

params! {
    /// Collections of a data folder
    #[derive()]
    pub struct CollectionSettings: Collection of [] {
        /// Data folder that has the collections; `create` makes it where there is none
        data: Option<PathBuf> = None,
            { shown: "DIR", is_required: true, in_requests: false, in_python: false,
              places: &[Place::Collections], level: Level::Usual };
        /// Limit of all memory of the data folder, such as 512MiB
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", in_requests: false,
              places: &[Place::Collections], level: Level::Usual };
    }
}

params! {
    /// A new collection
    #[derive(Copy)]
    pub struct CreateSettings: Collection of [] {
        /// Components of a vector
        dim: Option<u64> = None,
            { shown: "D", range: 1.0..=4096.0, is_required: true, places: &[Place::Collections], level: Level::Usual };
        /// Distance; smaller is closer for all metrics
        metric: MetricName = MetricName::L2, { places: &[Place::Collections], level: Level::Usual };
        /// Type of a component
        dtype: ElementName = ElementName::F32, { places: &[Place::Collections], level: Level::Usual };
    }
}

params! {
    /// Memory of a collection: its points in memory, and its open segments
    #[derive()]
    pub struct LimitSettings: Collection of [] {
        /// Most memory of the collection, such as 1GiB; none for no quota
        memory_quota: Option<String> = None,
            { shown: "SIZE", usual: "no quota for a new collection", in_requests: false,
              places: &[Place::Collections], level: Level::Usual };
        /// Memory that other collections never take, such as 64MiB
        memory_minimum: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "0 for a new collection", in_requests: false,
              places: &[Place::Collections], level: Level::Usual };
    }
}

params! {
    /// New points of a collection
    #[derive()]
    pub struct UpsertSettings: Collection of [] {
        /// Ids, one for each row: .u64bin or .npy, or a text file with one on each line, a number, a UUID or a string
        ids: Option<PathBuf> = None,
            { shown: "FILE", usual: "the row number", conflicts: &["first_id"], in_requests: false,
              in_python: false, places: &[Place::Collections], level: Level::Usual };
        /// Id of the first row; each later row has the next one
        first_id: u64 = 0,
            { shown: "N", conflicts: &["ids"], in_requests: false, in_python: false,
              places: &[Place::Collections], level: Level::Usual };
    }
}

params! {
    /// Deleted points of a collection
    #[derive()]
    pub struct DeleteSettings: Collection of [] {
        /// Ids, separated by commas, instead of a file: numbers, UUIDs or strings
        id: Vec<String> = Vec::new(),
            { shown: "ID", usual: "those of a file", in_requests: false, in_python: false,
              places: &[Place::Collections], level: Level::Usual };
    }
}

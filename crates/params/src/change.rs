//! Parameters of changes of an index.

use crate::choices::PlanName;
use crate::{Level, Place, Unit};

params! {
    /// Inserted and deleted vectors
    #[derive(Copy)]
    pub struct UpdateSettings: Update of [] {
        /// Threads, each with a connection of its own
        threads: usize = 4, { range: 1.0..=1024.0, places: &[Place::MemoryNodes], level: Level::Usual };
        /// Changes that a thread makes side by side: what they need is asked for in one request. With 1 each change
        /// makes its own requests (to compare)
        batch: u32 = 64,
            { shown: "N", range: 1.0..=1024.0, places: &[Place::MemoryNodes], level: Level::Usual };
        /// Limit of all memory of deletes in a folder
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", in_python: false, places: &[Place::Folder],
              level: Level::Usual };
    }
}

params! {
    /// Plans for another RAM budget
    #[derive(Copy)]
    pub struct ReplanSettings: Replan of [HybridIvf] {
        /// RAM of later searches, such as 64MiB
        search_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, is_required: true, level: Level::Usual };
        /// Local index of the inverted lists
        plan: PlanName = PlanName::Auto, { level: Level::Usual };
        /// Limit of the memory of this command
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", level: Level::Usual };
    }
}

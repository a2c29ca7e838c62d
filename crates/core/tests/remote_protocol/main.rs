//! Storms of compute nodes over groups in remote memory.

use proptest::prelude::*;

mod client;
mod history;
mod last_slot;
mod memory;
mod storm;
mod torn;
mod world;

use storm::{Counts, FaultModel, Storm};
use world::Settings;

const SETTINGS: Settings =
    Settings { capacity: 6, tombstones: 48, spare_pages: 400, data_nodes: 1, members: 12 };

fn usual_faults() -> FaultModel {
    FaultModel { clients: 5, steps: 60_000, deaths: true, stops: true, ..FaultModel::default() }
}

fn storm(seed: u64, settings: Settings, faults: &FaultModel) -> Counts {
    let mut storm = Storm::new(seed, settings, faults);
    storm.run(faults);
    storm.counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    #[test]
    fn every_batch_finds_what_was_acknowledged(seed: u64) {
        storm(seed, SETTINGS, &usual_faults());
    }

    #[test]
    fn space_is_reused_without_harm(seed: u64) {
        storm(seed, Settings { spare_pages: 14, ..SETTINGS }, &usual_faults());
    }

    #[test]
    fn groups_of_several_nodes_keep_what_was_acknowledged(seed: u64, spare_pages in 14..60u64) {
        storm(seed, Settings { spare_pages, data_nodes: 2, ..SETTINGS }, &usual_faults());
    }

    /// A node is lost for a while now and then: changes and batches fail, and what was acknowledged is there later.
    #[test]
    fn a_node_that_is_cut_off_for_a_while_has_what_was_acknowledged(seed: u64, data_nodes in 1..=2u8) {
        let faults = FaultModel { loses_nodes: true, ..usual_faults() };
        storm(seed, Settings { spare_pages: 60, data_nodes, ..SETTINGS }, &faults);
    }
}

#[test]
fn a_storm_reaches_everything_and_is_repeated_by_its_seed() {
    let long = FaultModel { steps: 600_000, ..usual_faults() };
    let settings = || Settings { spare_pages: 20, ..SETTINGS };
    let counts = storm(7, settings(), &long);
    assert_eq!(counts, storm(7, settings(), &long));
    let reached = [
        counts.batches,
        counts.inserted,
        counts.deleted,
        counts.full,
        counts.log_full,
        counts.rebuilt,
        counts.folded,
    ];
    let rare =
        [counts.replaced, counts.no_space, counts.lost_spaces, counts.freed, counts.died, counts.stopped];
    assert!(reached.iter().chain(&rare).all(|count| *count > 0), "{counts:?}");
}

#[test]
fn space_is_used_again_once_no_reader_is_in_it() {
    // Nobody dies or stops, so no space is lost: far more groups are written than there is room for.
    let no_faults = FaultModel { deaths: false, stops: false, steps: 300_000, ..usual_faults() };
    let counts = storm(3, Settings { spare_pages: 24, ..SETTINGS }, &no_faults);
    assert!(counts.rebuilt > 40 && counts.lost_spaces * 3 <= 24, "{counts:?}");
}

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
    Settings { capacity: 6, tombstones: 48, spare_pages: 400, has_mirror: false, data_nodes: 1, members: 12 };

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
    fn a_mirror_has_what_was_acknowledged(seed: u64, steps in 1000u64..60_000) {
        let faults = FaultModel { loses_first_copy: true, steps, ..usual_faults() };
        let mut storm = Storm::new(seed, Settings { has_mirror: true, spare_pages: 60, ..SETTINGS }, &faults);
        storm.run(&faults);
        storm.read_mirror();
    }

    /// Rebuilders die more often than others, so that many die before they publish on the mirror.
    #[test]
    fn mirrors_that_are_lost_and_come_back_have_what_was_acknowledged(
        seed: u64,
        data_nodes in 1..=2u8,
        spare_pages in 14..60u64,
        steps in 1000u64..60_000,
    ) {
        let settings = Settings { has_mirror: true, spare_pages, data_nodes, ..SETTINGS };
        let faults = FaultModel { loses_first_copy: true, loses_mirror: true, steps, ..usual_faults() };
        let mut storm = Storm::new(seed, settings, &faults);
        storm.run(&faults);
        storm.read_mirror();
    }
}

#[test]
fn a_storm_reaches_everything_and_is_repeated_by_its_seed() {
    let long = FaultModel { steps: 600_000, ..usual_faults() };
    let settings = || Settings { spare_pages: 14, ..SETTINGS };
    let counts = storm(7, settings(), &long);
    assert_eq!(counts, storm(7, settings(), &long));
    let reached =
        [counts.batches, counts.inserted, counts.deleted, counts.full, counts.log_full, counts.rebuilt];
    let rare =
        [counts.replaced, counts.no_space, counts.lost_spaces, counts.freed, counts.died, counts.stopped];
    assert!(reached.iter().chain(&rare).all(|count| *count > 0), "{counts:?}");
}

/// A mirror that was away while a rebuild published needs tombstones that the first copy does not need any more.
#[test]
fn a_mirror_that_missed_a_rebuild_shows_nothing_that_was_deleted() {
    for group in [0, 1] {
        let no_faults = FaultModel { clients: 1, loses_first_copy: true, ..FaultModel::default() };
        let mut storm = Storm::new(5, Settings { has_mirror: true, ..SETTINGS }, &no_faults);
        storm.lose_mirror_in_a_rebuild(group);
        storm.read_mirror();
    }
}

/// A second rebuilder dies at each of its steps, after the mirror has missed what the first one published.
#[test]
fn a_mirror_that_missed_a_rebuild_is_sound_wherever_the_next_rebuilder_dies() {
    for (group, truncates) in [(0, false), (1, true), (0, true), (1, false)] {
        let mut steps = 0;
        loop {
            let no_faults = FaultModel { clients: 1, ..FaultModel::default() };
            let mut storm =
                Storm::new(9, Settings { has_mirror: true, spare_pages: 30, ..SETTINGS }, &no_faults);
            if storm.die_in_a_second_rebuild(group, steps, truncates) {
                break;
            }
            steps += 1;
        }
        assert!(steps > 20, "{steps}");
    }
}

#[test]
fn space_is_used_again_once_no_reader_is_in_it() {
    // Nobody dies or stops, so no space is lost: far more groups are written than there is room for.
    let no_faults = FaultModel { deaths: false, stops: false, steps: 300_000, ..usual_faults() };
    let counts = storm(3, Settings { spare_pages: 24, ..SETTINGS }, &no_faults);
    assert!(counts.rebuilt > 40 && counts.lost_spaces * 3 <= 24, "{counts:?}");
}

//! Windows of made traffic: the members are a ring, a query has those after a place as its results.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::hash::hash;

/// Results of a query.
const K: u32 = 10;

struct Ring {
    members: u32,
    // Those below are here.
    held: u32,
    clusters: u32,
    hot: usize,
    resident: usize,
    learned: Vec<u32>,
}

impl HotRoom for Ring {
    fn members(&self) -> u64 {
        self.held.into()
    }

    fn capacity(&self) -> usize {
        self.hot
    }

    fn holds(&self, member: u32) -> bool {
        member < self.held
    }

    /// Those of the lowest numbers, or those that were learned.
    fn resident(&self) -> Vec<u32> {
        if self.learned.is_empty() { (0..self.resident as u32).collect() } else { self.learned.clone() }
    }

    fn would_be_resident(&self, visits: &[u32]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.clusters).collect();
        order.sort_by_key(|&c| core::cmp::Reverse(visits.get(c as usize).copied().unwrap_or(0)));
        order.truncate(self.resident);
        order.sort_unstable();
        order
    }
}

impl Ring {
    /// As many hot members as an index of that size has: a tenth of the nodes of its navigation graph.
    fn new(members: u32) -> Ring {
        Ring {
            members,
            held: members,
            clusters: 50,
            hot: (12 * members.isqrt() / 10) as usize,
            resident: 0,
            learned: Vec::new(),
        }
    }

    /// A window of queries at these places, each drawn from a number of its own.
    fn window(&self, queries: u32, seed: u64, place: impl Fn(u64) -> u64) -> Traffic {
        let mut window = Traffic::new(self.clusters);
        for query in 0..queries {
            let half = &mut window.halves[usize::from(query >= queries / 2)];
            let at = (place(hash(seed, 1, query.into())) % u64::from(self.members)) as u32;
            let results = (0..K).map(|i| (at + i) % self.members);
            half.results.extend(results);
            let cluster =
                |at: u32| (u64::from(at) * u64::from(self.clusters) / u64::from(self.members)) as u32;
            // One list has the results; three are visited without.
            for c in [0, 7, 19, 31].map(|far| (cluster(at) + far) % self.clusters) {
                half.visits[c as usize] += 1;
            }
            half.queries += 1;
        }
        window
    }

    fn uniform(&self, queries: u32, seed: u64) -> Traffic {
        self.window(queries, seed, |drawn| drawn)
    }

    /// All queries at one of a few places.
    fn hot(&self, queries: u32, seed: u64, spot: u64) -> Traffic {
        self.window(queries, seed, |drawn| hash(5, spot, drawn % 8))
    }

    /// Places by Zipf's law: ranks from a power of two to the next together have the same share.
    fn zipf(&self, queries: u32, seed: u64, places: u32) -> Traffic {
        let octaves = u64::from(places.ilog2());
        let rank = move |drawn: u64| {
            let octave = 1 << (drawn % octaves);
            octave + (drawn >> 16) % octave
        };
        self.window(queries, seed, move |drawn| hash(9, 2, rank(drawn)))
    }
}

fn findings<'a>(windows: impl IntoIterator<Item = Traffic> + 'a, ring: &'a Ring) -> Vec<Finding> {
    let mut spots = HotSpots::default();
    windows.into_iter().map(|window| spots.observe(&window, ring)).collect()
}

/// A server of a partition has the vectors of a part of the members, and so of a part of the results.
#[test]
fn uniform_traffic_shows_no_hot_spot_to_a_server_with_a_quarter() {
    for members in [1000, 10_000] {
        let ring = Ring { held: members / 4, ..Ring::new(members) };
        let found = findings((0..20).map(|seed| ring.uniform(2000, seed)), &ring);
        assert_eq!(learned(&found), [0; 0], "{found:?}");
        let hot = findings((0..4).map(|seed| ring.hot(2000, seed, 3)), &ring);
        assert_eq!(learned(&hot), [0, 1, 2, 3], "{hot:?}");
    }
}

fn learned(found: &[Finding]) -> Vec<usize> {
    (0..found.len()).filter(|&at| found[at].is_worth).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the size, traffic without a hot spot stays far below the threshold.
    #[test]
    fn uniform_traffic_is_far_below_the_threshold(
        members in prop::sample::select(vec![1000u32, 10_000, 100_000]),
        queries in prop::sample::select(vec![100u32, 200, 500, 2000]),
        resident in prop::sample::select(vec![0usize, 5, 25, 50]),
        seed in 0..1000u64,
    ) {
        let ring = Ring { resident, ..Ring::new(members) };
        for at in findings((0..4).map(|window| ring.uniform(queries, seed + 1000 * window)), &ring) {
            prop_assert!(at.spot.max(at.paid) < EXCESS_MIN / 3.0 && !at.is_worth, "{at:?}");
        }
    }

    /// Queries by Zipf's law are far above it.
    #[test]
    fn hot_traffic_is_far_above_the_threshold(
        members in prop::sample::select(vec![10_000u32, 100_000]),
        queries in prop::sample::select(vec![500u32, 2000]),
        resident in prop::sample::select(vec![0usize, 5, 25, 50]),
        seed in 0..1000u64,
    ) {
        let ring = Ring { resident, ..Ring::new(members) };
        let found = findings((0..4).map(|window| ring.zipf(queries, seed + 1000 * window, 2000)), &ring);
        for (at, found) in found.iter().enumerate() {
            prop_assert!(found.spot > 2.0 * EXCESS_MIN && found.is_worth, "window {at}: {found:?}");
            prop_assert!(at < 2 || found.paid > 2.0 * EXCESS_MIN, "window {at}: {found:?}");
        }
    }

    /// Parts of workers, in any order, are one window.
    #[test]
    fn a_window_is_found_alike_in_parts(seed in 0..1000u64, order in any::<bool>()) {
        let ring = Ring::new(2000);
        let whole = ring.zipf(300, seed, 500);
        let mut parts = [Traffic::new(ring.clusters), Traffic::new(ring.clusters)];
        for (half, all) in whole.halves.iter().enumerate() {
            for (at, &id) in all.results.iter().enumerate() {
                parts[usize::from(hash(3, 0, at as u64).is_multiple_of(2))].halves[half].results.push(id);
            }
            parts[1].halves[half].visits.clone_from(&all.visits);
            parts[0].halves[half].queries = all.queries / 3;
            parts[1].halves[half].queries = all.queries - all.queries / 3;
        }
        let [mut first, mut second] = parts;
        if order {
            core::mem::swap(&mut first, &mut second);
        }
        first.merge(&second);
        prop_assert_eq!(findings([first], &ring), findings([whole], &ring));
    }
}

#[test]
fn a_hot_spot_is_learned_from_its_first_window_on() {
    let ring = Ring::new(10_000);
    let hot = |spot: u64, windows: core::ops::Range<u64>| windows.map(move |at| (at, spot));
    let plan: Vec<(u64, u64)> =
        hot(0, 0..3).chain(hot(1, 3..8)).chain(hot(0, 8..12)).chain(hot(2, 12..15)).collect();
    let windows = plan.iter().map(|&(at, spot)| match spot {
        0 => ring.uniform(500, at),
        spot => ring.hot(500, at, spot),
    });
    let found = findings(windows, &ring);
    // Two windows after its end what was learned from it has paid no more.
    assert_eq!(learned(&found), [3, 4, 5, 6, 7, 12, 13, 14]);
}

#[test]
fn a_hot_spot_that_moves_with_every_window_is_given_up() {
    let ring = Ring::new(10_000);
    let moving = findings((0..12).map(|at| ring.hot(500, at, at + 1)), &ring);
    assert!(moving.iter().all(|at| at.spot > 0.9 && at.paid < EXCESS_MIN), "{moving:?}");
    assert_eq!(learned(&moving), [0, 1]);
    // Once it stays, the window that the one two before foresaw is learned from, and so are all that follow.
    let stays = findings((0..12).map(|at| ring.hot(500, at, 1 + at.min(6))), &ring);
    assert_eq!(learned(&stays), [0, 1, 8, 9, 10, 11]);
    // One that moves once, or comes back with every other window, is learned from throughout.
    for spot in [|at: u64| 1 + at / 6, |at: u64| 1 + at % 2] {
        let found = findings((0..12).map(|at| ring.hot(500, at, spot(at))), &ring);
        assert_eq!(learned(&found).len(), 12);
    }
}

#[test]
fn lists_count_where_members_do_not_repeat() {
    let ring = Ring { hot: 0, resident: 10, ..Ring::new(10_000) };
    // A tenth of the ring: its lists are worth keeping, and no member is.
    let region = |at| ring.window(500, at, |drawn| 5000 + drawn % 1000);
    let found = findings((0..4).map(region), &ring);
    assert_eq!(learned(&found), [0, 1, 2, 3]);
    // Once they are resident there is nothing more to learn.
    let [first, _] = &region(9).halves;
    let adapted =
        Ring { learned: ring.would_be_resident(&first.visits), ..Ring { learned: Vec::new(), ..ring } };
    assert_eq!(learned(&findings((0..4).map(region), &adapted)).len(), 0);
    let ring = adapted;
    assert_eq!(
        learned(&findings((0..4).map(region), &Ring { resident: 0, learned: Vec::new(), ..ring })).len(),
        0
    );
}

#[test]
fn what_was_learned_before_is_held_against_the_first_window() {
    let ring = Ring::new(10_000);
    let [first, second] = &ring.hot(500, 0, 1).halves;
    let mut spots = HotSpots::after(HotSet::of(&[first, second], &ring));
    let found = spots.observe(&ring.hot(500, 1, 1), &ring);
    assert!(found.paid > 0.9 && found.is_worth, "{found:?}");
}

//! How a query finds the rows of a sieve: the cheapest of three ways, by the exact number of rows and blocks.

use stratann_core::format::block_map::BlockMap;
use stratann_core::kinds::KindParams;
use stratann_core::kinds::disk_graph::{Codes, Sieving, View};
use stratann_core::query::{MAX_SEARCH_LIST, Params};
use stratann_core::sieve::Sieve;

use super::calibration;
use crate::curve::RECALL_OF_FAR;
use crate::kinds::answers::{SearchWork, SievePlan, SievedQuery};
use crate::sieve_ways::{PriceUnit, SievePrices, SieveWay};

// Prices of a usual machine, not of this one: answers depend on the way, and shall not depend on the machine.
/// Nanoseconds of a read of a block, with others under way.
const READ_NS: f64 = 20_000.0;
/// Nanoseconds of a comparison of a code, its part of the walk included.
const CODE_NS: f64 = 15.0;
/// Nanoseconds of a code in a scan of codes, which come from anywhere.
const SCANNED_CODE_NS: f64 = 22.0;
/// Nanoseconds for each component of a query that is made ready for codes.
const PREPARED_NS: f64 = 35.0;
/// Nanoseconds of a vector that is compared, and of each of its bytes.
const VECTOR_NS: f64 = 10.0;
const VECTOR_BYTE_NS: f64 = 0.1;
/// Blocks that a scan of codes reads beside one for each result, about.
const MORE_READS: f64 = 4.0;
/// Comparisons of a walk among the rows of a sieve for each candidate of its beam, about.
const SEED_COMPARISONS: f64 = 20.0;
/// Nanoseconds of each of them: the beam is long.
const SEED_CODE_NS: f64 = 60.0;
/// Fewer misses than this are not aimed at.
const LEAST_MISSES: f64 = 1e-3;
/// Candidates of a scan of codes beyond four for each result.
const CANDIDATES: u32 = 256;

/// What the three ways cost, nanoseconds.
struct Costs {
    exact: f64,
    codes: f64,
    search: f64,
    /// A block that a search uses.
    of_block: f64,
}

/// The cheapest way to the rows of a sieve.
pub(super) fn plan(view: &View<'_>, vector_bytes: usize, query: &SievedQuery<'_>) -> SievePlan {
    let costs = Costs::of(view, vector_bytes, query);
    let prices = Some(costs.prices());
    let exact = SievePlan { way: SieveWay::Exact, params: exact_params(query.usual), more_bytes: 0, prices };
    let other = costs.codes.min(costs.search);
    let is_exact =
        query.only.map_or(costs.exact <= other && !query.is_measured, |way| way == SieveWay::Exact);
    if is_exact || query.usual.kind.disk_graph().is_none_or(|own| own.scan) {
        return exact;
    }
    let k = query.usual.k;
    let list = query.sieve.count().min(k * 4 + CANDIDATES).clamp(k, MAX_SEARCH_LIST);
    let sieving = Sieving { slack: query.slack(), list, ..Sieving::default() };
    let is_scan =
        query.only.map_or(costs.codes <= costs.search && !query.is_measured, |way| way == SieveWay::Codes)
            && costs.codes.is_finite();
    let way = if is_scan { SieveWay::Codes } else { SieveWay::Search };
    let mut plan = SievePlan { way, params: query.usual, more_bytes: 0, prices };
    if let KindParams::DiskGraph(own) = &mut plan.params.kind {
        own.sieving = match way {
            SieveWay::Codes => Sieving { code_scan: true, ..sieving },
            _ => {
                // The beam has room for what is passed over.
                let seeds = own.sieving.seeds;
                let is_completed = seeds > 0 && matches!(view.codes, Codes::All(_));
                let seed_list = if seeds > 0 { costs.seed_list(own.search_list, query) } else { 0 };
                let list =
                    (f64::from(own.search_list) * query.times).max(list_min(k, query.times, is_completed));
                own.search_list = list.ceil().min(MAX_SEARCH_LIST.into()) as u32;
                let sieving = Sieving { seeds, seed_list, ..sieving };
                let is_kept = query.is_measured || query.only.is_some();
                if is_kept { sieving } else { costs.give_way(sieving) }
            }
        };
    }
    plan
}

impl Costs {
    fn of(view: &View<'_>, vector_bytes: usize, query: &SievedQuery<'_>) -> Costs {
        let vector_ns = VECTOR_BYTE_NS * vector_bytes as f64 + VECTOR_NS;
        let prepared = PREPARED_NS * view.coder.dim() as f64;
        let (rows, blocks) = (f64::from(query.sieve.count()), f64::from(blocks(view.map, query.sieve)));
        let k = f64::from(query.usual.k);
        let per_block = f64::from(view.map.nodes()) / f64::from(view.map.blocks().max(1));
        // A walk by codes is that of an index in memory. What is in memory does not decide: answers would depend on it.
        let is_walk = query.usual.kind.disk_graph().is_some_and(|own| own.rerank > 0);
        let read_ns = if is_walk { 0.0 } else { READ_NS };
        let of_block = if is_walk { read_ns } else { read_ns + per_block * (vector_ns + CODE_NS) };
        let codes = match view.codes {
            Codes::All(_) => {
                let reads = blocks.min(k + MORE_READS);
                prepared + rows * SCANNED_CODE_NS + reads * (read_ns + rows / blocks.max(1.0) * vector_ns)
            }
            Codes::Head(_) => f64::INFINITY,
        };
        let SearchWork { reads, comparisons } = query.work;
        let verified = if is_walk { 4.0 * k * vector_ns } else { reads * of_block };
        let search = prepared + comparisons * CODE_NS + verified;
        Costs { exact: blocks * read_ns + rows * vector_ns, codes, search, of_block }
    }

    fn prices(&self) -> SievePrices {
        const NS_PER_US: f64 = 1000.0;
        let price = |ns: f64| ns.is_finite().then_some(ns / NS_PER_US);
        let (exact, codes, search) = (price(self.exact), price(self.codes), price(self.search));
        SievePrices { unit: PriceUnit::Us, exact, codes, search }
    }

    /// Length of the beam of a walk among the rows of a sieve, where that of a search without one is `usual`: twice as
    /// long, and twice that for every two tenths. Misses were seen to shrink as the beam grows. None where no such walk
    /// was found to reach the recall, or where a scan costs less.
    fn seed_list(&self, usual: u32, query: &SievedQuery<'_>) -> u32 {
        let Some(tenths) = query.far_tenths else { return 0 };
        let misses = (1.0 - query.recall.unwrap_or(RECALL_OF_FAR)).max(LEAST_MISSES);
        let times = f64::exp2(f64::from(tenths) / 2.0 + 1.0) * ((1.0 - RECALL_OF_FAR) / misses).max(1.0);
        let list = (f64::from(usual) * times).ceil().min(MAX_SEARCH_LIST.into());
        let of_candidate = self.of_block + SEED_COMPARISONS * SEED_CODE_NS;
        if list * of_candidate < self.exact.min(self.codes) { list as u32 } else { 0 }
    }

    /// Where a search has cost as much as the cheapest other way, it gives way to that.
    fn give_way(&self, sieving: Sieving) -> Sieving {
        let limit_ns = self.exact.min(self.codes);
        let at_least_one = |limit: f64| (limit.ceil() as u64).max(1);
        let blocks_max = if self.of_block > 0.0 { at_least_one(limit_ns / self.of_block) } else { 0 };
        Sieving {
            to_codes: self.codes < self.exact,
            blocks_max: u32::try_from(blocks_max).unwrap_or(u32::MAX),
            comparisons_max: at_least_one(limit_ns / CODE_NS),
            ..sieving
        }
    }
}

/// Length of a beam that ends with k rows of the sieve or more in all but some of a hundred queries, where these lie
/// anywhere: their number in the beam is a binomial one, of which this is two standard deviations above k. Where a
/// second walk completes what falls short, half a deviation costs least.
fn list_min(k: u32, times: f64, is_completed: bool) -> f64 {
    let (k, deviations) = (f64::from(k), if is_completed { 0.5 } else { 2.0 });
    times * (k + deviations * (k * (1.0 - 1.0 / times)).sqrt())
}

fn exact_params(usual: Params) -> Params {
    let mut params = calibration::beam_params(usual.k, usual.k, None);
    if let KindParams::DiskGraph(own) = &mut params.kind {
        own.scan = true;
    }
    Params { kind: params.kind, ..usual }
}

/// Blocks with a row of the sieve.
fn blocks(map: &BlockMap, sieve: &Sieve) -> u32 {
    let (mut count, mut next) = (0, sieve.next(0));
    while let Some(row) = next {
        count += 1;
        next = sieve.next(map.nodes_of(map.block_of(row)).end);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_a_row_are_counted_once() {
        let map = BlockMap::from_counts([3, 1, 4, 2]).unwrap();
        let count = |ids: &[u32]| blocks(&map, &Sieve::from_sorted(10, ids).unwrap());
        assert_eq!(
            [&[][..], &[0], &[0, 2], &[2, 3], &[3, 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]].map(count),
            [0, 1, 1, 2, 2, 4]
        );
    }
}

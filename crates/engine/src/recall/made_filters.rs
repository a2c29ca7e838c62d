//! Filters that are made to measure what searches with filters find: of some shares of the rows, which lie anywhere,
//! near the queries, or far from them.

use stratann_core::hash::hash;
use stratann_core::sieve::Sieve;
use stratann_kernel::Metric;
use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::topk::{Scored, TopK};
use stratann_storage::{Error, Progress, Result};

use super::known::Known;
use super::tune::pool;
use crate::index::Index;
use crate::kinds::answers::Member;
use crate::parallel;

/// Shares of the rows that filters have.
pub(crate) const SHARES: [f64; 3] = [0.5, 0.1, 0.02];
/// Queries whose filters have rows drawn at random.
const QUERIES: usize = 64;
/// Queries from which near and far are counted, and the queries nearest to each that are asked with such filters.
const CENTRES: usize = 3;
const AROUND: usize = 12;
/// Rows that tell at which distance a share of all begins.
const SAMPLE: u64 = 1024;
/// A filter has so many times k rows at least: a search among fewer goes through all.
const ROWS_MIN_TIMES: u64 = 4;
/// Bytes for a row while filters are made: a bit of each filter, twice.
const ROW_BITS: u64 = 2 * (SHARES.len() * (1 + 2 * CENTRES)) as u64;

/// Where the rows of a filter are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Anywhere,
    Near,
    Far,
}

/// A filter, and queries whose neighbours among its rows are known.
pub(crate) struct MadeFilter {
    /// The number of its share.
    pub(crate) share: usize,
    pub(crate) place: Place,
    pub(crate) sieve: Sieve,
    pub(crate) known: Known,
}

impl MadeFilter {
    /// Whether a search for k results does not go through all of its rows.
    pub(crate) fn is_of_use(&self, k: u32) -> bool {
        u64::from(self.sieve.count()) >= ROWS_MIN_TIMES * u64::from(k)
    }
}

/// The filter of the rows up to a distance from a query, or of those beyond it, or of a share of all by chance.
struct Rule {
    share: usize,
    place: Place,
    /// The centre; of no use where rows lie anywhere.
    centre: usize,
    distance: f32,
}

/// Makes filters for `known` queries, with `k` neighbours each. Reads all of the index once. None where there is no
/// room for them, or too few queries.
pub(crate) fn make(
    index: &Index,
    known: &Known,
    k: usize,
    (seed, threads, budget_bytes): (u64, usize, u64),
    progress: &dyn Progress,
) -> Result<Vec<MadeFilter>> {
    let base = &index.base;
    let rows = base.manifest.rows;
    let is_too_large = rows.saturating_mul(ROW_BITS) / 8 > budget_bytes;
    if known.count() < QUERIES || is_too_large || base.manifest.live_rows() < ROWS_MIN_TIMES * 2 {
        return Ok(Vec::new());
    }
    let centres: Vec<usize> = (0..CENTRES).map(|at| (2 * at + 1) * known.count() / (2 * CENTRES)).collect();
    let exacts: Vec<Exact> =
        centres.iter().map(|&query| exact(index, query_of(index, known, query))).collect();
    let rules = rules(index, &exacts, seed)?;
    let mut sets = vec![vec![0u64; (rows as usize).div_ceil(64)]; rules.len()];
    let mut seekers = seekers(index, known, &exacts, &rules, k);
    let (work, unit) = index.kind.scan_work(base);
    progress.stage("exact neighbours among filtered rows", work, unit);
    let mut masks = Vec::new();
    pool(threads)?.install(|| {
        index.kind.for_each_member(base, progress, &mut |members| {
            masks.clear();
            masks.extend(members.iter().map(|member| match base.is_live(member.id) {
                true => mask(&rules, &exacts, member, seed),
                false => 0,
            }));
            for (member, &mask) in members.iter().zip(&masks) {
                let bits = sets.iter_mut().enumerate().filter(|(at, _)| mask >> at & 1 == 1);
                bits.for_each(|(_, set)| set[member.id as usize / 64] |= 1 << (member.id % 64));
            }
            let masks = &masks;
            parallel::for_each(&mut seekers, |seeker| {
                members.iter().zip(masks).for_each(|(member, &mask)| seeker.see(member, mask));
            });
        })
    })?;
    let mut made = Vec::new();
    for (number, (rule, words)) in rules.iter().zip(&sets).enumerate() {
        let sieve = Sieve::from_words(rows as u32, words);
        let sieve = sieve.ok_or_else(|| Error::corrupt("a member has a number beyond the rows"))?;
        let known = found(index, known, &seekers, number, k);
        made.push(MadeFilter { share: rule.share, place: rule.place, sieve, known });
    }
    Ok(made)
}

fn query_of<'k>(index: &Index, known: &'k Known, query: usize) -> &'k [u8] {
    let bytes = index.base.row_bytes();
    &known.queries[query * bytes..(query + 1) * bytes]
}

fn exact(index: &Index, query: &[u8]) -> Exact {
    let (base, mut exact) = (&index.base, Exact::default());
    exact.set(base.metric, base.dtype, base.manifest.dim, query);
    exact
}

/// Distance from a query that is prepared to another vector.
fn distance(index: &Index, from: &Exact, to: &[u8]) -> f32 {
    let norm = if index.base.metric == Metric::Cosine { inverse_norm(index.base.dtype, to) } else { 1.0 };
    from.distance(to, norm)
}

/// The filters: by chance, and near and far from each centre at the distance that a sample of rows tells.
fn rules(index: &Index, centres: &[Exact], seed: u64) -> Result<Vec<Rule>> {
    let (base, rows) = (&index.base, index.base.manifest.rows);
    let shares = || 0..SHARES.len();
    let mut rules: Vec<Rule> =
        shares().map(|share| Rule { share, place: Place::Anywhere, centre: 0, distance: 0.0 }).collect();
    let drawn = (0..SAMPLE).map(|at| (hash(seed, 31, at) % rows) as u32).filter(|&id| base.is_live(id));
    let sample = drawn.map(|id| index.kind.vector(base, id)).collect::<Result<Vec<_>>>()?;
    for (centre, exact) in centres.iter().enumerate() {
        let mut distances: Vec<f32> = sample.iter().map(|row| distance(index, exact, row)).collect();
        distances.sort_unstable_by(f32::total_cmp);
        let at =
            |share: f64| distances.get((share * distances.len() as f64) as usize).copied().unwrap_or(0.0);
        for share in shares() {
            rules.push(Rule { share, place: Place::Near, centre, distance: at(SHARES[share]) });
            rules.push(Rule { share, place: Place::Far, centre, distance: at(1.0 - SHARES[share]) });
        }
    }
    Ok(rules)
}

/// A bit for each filter that has a member.
fn mask(rules: &[Rule], centres: &[Exact], member: &Member<'_>, seed: u64) -> u32 {
    let chance = hash(seed, 32, u64::from(member.id)) as f64 / u64::MAX as f64;
    let mut distances = [0.0; CENTRES];
    for (distance, centre) in distances.iter_mut().zip(centres) {
        *distance = centre.distance(member.vector, member.inverse_norm);
    }
    let has = |rule: &Rule| match rule.place {
        Place::Anywhere => chance < SHARES[rule.share],
        Place::Near => distances[rule.centre] <= rule.distance,
        Place::Far => distances[rule.centre] >= rule.distance,
    };
    rules.iter().enumerate().fold(0, |mask, (at, rule)| mask | u32::from(has(rule)) << at)
}

/// A query, and the nearest rows so far of each of its filters.
struct Seeker {
    query: usize,
    hidden: u32,
    exact: Exact,
    /// Its filters.
    mask: u32,
    nearest: Vec<(usize, TopK)>,
}

impl Seeker {
    fn see(&mut self, member: &Member<'_>, mask: u32) {
        if mask & self.mask == 0 || member.id == self.hidden {
            return;
        }
        let distance = self.exact.distance(member.vector, member.inverse_norm);
        for (filter, top) in &mut self.nearest {
            if mask >> *filter & 1 == 1 && distance <= top.threshold() {
                top.push(Scored { distance, id: member.external_id });
            }
        }
    }
}

/// The queries of all filters: some of all for rows anywhere, those around a centre for its filters.
fn seekers(index: &Index, known: &Known, centres: &[Exact], rules: &[Rule], k: usize) -> Vec<Seeker> {
    let count = known.count();
    let mut asked: Vec<(usize, Vec<usize>)> = Vec::new();
    let of = |wanted: &dyn Fn(&Rule) -> bool| -> Vec<usize> {
        rules.iter().enumerate().filter(|(_, rule)| wanted(rule)).map(|(at, _)| at).collect()
    };
    let anywhere = of(&|rule| rule.place == Place::Anywhere);
    asked.extend((0..QUERIES).map(|at| (at * count / QUERIES, anywhere.clone())));
    for (centre, exact) in centres.iter().enumerate() {
        let mut order: Vec<(f32, usize)> =
            (0..count).map(|query| (distance(index, exact, query_of(index, known, query)), query)).collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let own = of(&|rule| rule.place != Place::Anywhere && rule.centre == centre);
        asked.extend(order.iter().take(AROUND).map(|&(_, query)| (query, own.clone())));
    }
    let seeker = |(query, filters): (usize, Vec<usize>)| Seeker {
        query,
        hidden: known.hidden(query),
        exact: exact(index, query_of(index, known, query)),
        mask: filters.iter().fold(0, |mask, filter| mask | 1 << filter),
        nearest: filters.into_iter().map(|filter| (filter, TopK::new(k))).collect(),
    };
    asked.into_iter().map(seeker).collect()
}

/// The queries of a filter, and their neighbours.
fn found(index: &Index, known: &Known, seekers: &[Seeker], filter: usize, k: usize) -> Known {
    let mut found = Known { truth_k: k, ..Known::default() };
    for seeker in seekers {
        let Some((_, top)) = seeker.nearest.iter().find(|(own, _)| *own == filter) else { continue };
        found.queries.extend_from_slice(query_of(index, known, seeker.query));
        found.hidden.push(seeker.hidden);
        let mut nearest: Vec<u64> = top.clone().into_sorted().iter().map(|scored| scored.id).collect();
        nearest.resize(k, u64::MAX);
        found.truth.extend(nearest);
    }
    found
}

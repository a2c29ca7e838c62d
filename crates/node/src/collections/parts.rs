//! A query over all parts of a state: the points in memory and each segment.

use stratann_engine::search::{Effort, Filters, SearchOptions as EngineOptions};
use stratann_core::query::QueryStats;
use stratann_storage::Quiet;

use super::collection::SearchOptions;
use super::delta::{DeltaStats, Hit, Point, Searching, SegmentState, State, Wanted};
use super::error::{Error, Result};
use super::spec::Spec;
use crate::rows::ExternalId;
use crate::segments::Place;

/// Results of several queries, and what they cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answered {
    /// Results of each query.
    pub(super) hits: Vec<Vec<Hit>>,
    /// Sum over all queries and segments.
    pub(super) stats: QueryStats,
    /// Sum over all queries.
    pub(super) delta: DeltaStats,
}

/// Searches a state.
///
/// # Errors
/// Damage of a segment; no memory; `Io`.
pub(super) fn search(state: &State, spec: &Spec, queries: &[u8], options: &SearchOptions) -> Result<Answered> {
    let each = queries.chunks_exact(spec.row_bytes());
    let wanted =
        Wanted { k: options.k, recall: options.recall, bound: f32::INFINITY, all_rows: options.scan_all_in_memory };
    let mut searching = Searching::default();
    let hits = each.map(|query| state.nearest(spec, query, &wanted, &mut searching)).collect();
    let mut all = Answered { hits, stats: QueryStats::default(), delta: searching.stats };
    for own in state.segments.iter().filter(|own| own.left.rows().count() > 0) {
        search_segment(own, queries, options, &mut all)?;
    }
    Ok(all)
}

/// Joins the results of a segment with those that are there.
fn search_segment(
    own: &SegmentState,
    queries: &[u8],
    options: &SearchOptions,
    all: &mut Answered,
) -> Result<()> {
    let SegmentState { segment, left } = own;
    let effort = Effort::Recall(options.recall);
    let asked =
        EngineOptions { k: options.k, effort, threads: options.threads, ..EngineOptions::default() };
    let filter = segment.index.filter_of(left, &asked)?;
    let filters = filter.as_ref().map_or(Filters::None, Filters::Shared);
    let answers = segment.index.search_filtered(queries, filters, &asked, &Quiet)?;
    if let Some((query, why)) = answers.failed.first() {
        return Err(Error::corrupt(format!(
            "{}: query {query} has no answer: {why}",
            segment.index.folder().display()
        )));
    }
    all.stats.add(&answers.stats);
    for (query, hits) in all.hits.iter_mut().enumerate() {
        // They are in order, and one that is farther than all that are wanted needs no id.
        let most = hits.get(options.k - 1).map_or(f32::INFINITY, |last| last.distance);
        for (ordinal, distance) in answers.results(query) {
            if distance <= most {
                let (id, _) = segment.id(ordinal)?;
                hits.push(Hit { id, distance: distance + 0.0 });
            }
        }
        hits.sort_by(|one, two| one.distance.total_cmp(&two.distance).then_with(|| one.id.cmp(&two.id)));
        hits.truncate(options.k);
    }
    Ok(())
}

/// The point of an id that is in a segment.
///
/// # Errors
/// `Corrupt` and `Io` of a segment.
pub(super) fn point_in_segments(state: &State, id: &ExternalId) -> Result<Option<Point>> {
    for own in &state.segments {
        let place = own.segment.find(id)?.filter(|place| own.left.rows().has(place.row));
        if let Some(place) = place {
            return Ok(Some(point_at(own, id.clone(), place)?));
        }
    }
    Ok(None)
}

fn point_at(own: &SegmentState, id: ExternalId, place: Place) -> Result<Point> {
    Ok(Point { id, seq: place.seq, vector: own.segment.vector(place)? })
}

/// Points in memory, which are in the order of ids and behind `after`, together with those in segments: the first
/// `limit` of all.
///
/// # Errors
/// `Corrupt` and `Io` of a segment.
pub(super) fn with_segments(
    state: &State,
    in_memory: Vec<Point>,
    after: Option<&ExternalId>,
    limit: usize,
) -> Result<Vec<Point>> {
    let mut streams = Vec::with_capacity(state.segments.len());
    for own in &state.segments {
        let left = own.left.rows();
        let is_left = |next: &stratann_storage::Result<(ExternalId, Place)>| {
            next.as_ref().map_or(true, |(_, place)| left.has(place.row))
        };
        streams.push((own, own.segment.behind(after)?.filter(is_left).peekable()));
    }
    let mut in_memory = in_memory.into_iter().peekable();
    let mut points = Vec::with_capacity(limit.min(1024));
    while points.len() < limit {
        let mut least: Option<(usize, ExternalId)> = None;
        for (at, (_, stream)) in streams.iter_mut().enumerate() {
            let id = match stream.peek() {
                Some(Ok((id, _))) => id,
                Some(Err(e)) => return Err(e.clone().into()),
                None => continue,
            };
            if least.as_ref().is_none_or(|(_, least)| id < least) {
                least = Some((at, id.clone()));
            }
        }
        let is_in_memory = in_memory.peek().is_some_and(|own| least.as_ref().is_none_or(|(_, id)| own.id < *id));
        if is_in_memory {
            points.extend(in_memory.next());
            continue;
        }
        let Some((own, stream)) = least.and_then(|(at, _)| streams.get_mut(at)) else { break };
        if let Some(next) = stream.next() {
            let (id, place) = next?;
            points.push(point_at(own, id, place)?);
        }
    }
    Ok(points)
}

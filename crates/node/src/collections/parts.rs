//! A query over all parts of a state: the points in memory and each segment.

use stratann_core::query::QueryStats;
use stratann_engine::search::{Answers, Effort, Filters, SearchOptions as EngineOptions, Together};
use stratann_params::choices::PartsName;
use stratann_storage::Quiet;

use super::delta::{DeltaStats, Hit, Point, Searching, SegmentState, State, Wanted};
use super::error::{Error, Result};
use super::options::SearchOptions;
use super::spec::Spec;
use crate::rows::ExternalId;
use crate::segments::{Place, WantedRows};

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

/// Searches a state: the points in memory first, whose distances bound the search of the segments.
///
/// # Errors
/// Damage of a segment; no memory; `Io`.
pub(super) fn search(
    state: &State,
    spec: &Spec,
    queries: &[u8],
    options: &SearchOptions,
) -> Result<Answered> {
    let each = queries.chunks_exact(spec.row_bytes());
    let all_rows = options.scan_all_in_memory;
    let wanted = Wanted { k: options.k, recall: options.recall, bound: f32::INFINITY, all_rows };
    let mut searching = Searching::default();
    let hits = each.map(|query| state.nearest(spec, query, &wanted, &mut searching)).collect();
    let mut all = Answered { hits, stats: QueryStats::default(), delta: searching.stats };
    let segments = state.segments.iter().filter(|own| own.left.rows().count() > 0);
    let is_scanned = |own: &&SegmentState| own.segment.scanned.is_some() && !options.scan_all_in_memory;
    let (scanned, segments): (Vec<_>, Vec<_>) = segments.partition(is_scanned);
    for own in scanned {
        let found = queries.chunks_exact(spec.row_bytes()).zip(&mut all.hits);
        found.into_iter().try_for_each(|(query, hits)| scan(own, (query, hits), options, &mut searching))?;
    }
    all.delta = searching.stats;
    if !segments.is_empty() {
        search_segments(&segments, queries, options, &mut all)?;
    }
    Ok(all)
}

/// Searches a checkpoint, whose rows are in memory.
fn scan(
    own: &SegmentState,
    (query, hits): (&[u8], &mut Vec<Hit>),
    options: &SearchOptions,
    searching: &mut Searching,
) -> Result<()> {
    let Some(rows) = &own.segment.scanned else { return Ok(()) };
    let bound = hits.get(options.k - 1).map_or(f32::INFINITY, |last| last.distance);
    let wanted = WantedRows { left: own.left.rows(), k: options.k, recall: options.recall, bound };
    let found = rows.search(query, &wanted, &mut searching.query);
    searching.stats.rows += own.segment.rows();
    searching.stats.lists += found.scanned.lists;
    searching.stats.codes += found.scanned.codes;
    searching.stats.distances += found.distances;
    // The numbers of rows of a checkpoint are ordinals.
    for (distance, row) in found.rows {
        let (id, _) = own.segment.id(u64::from(row))?;
        hits.push(Hit { id, distance });
    }
    nearest_first(hits, options.k);
    Ok(())
}

fn nearest_first(hits: &mut Vec<Hit>, k: usize) {
    hits.sort_by(|one, two| one.distance.total_cmp(&two.distance).then_with(|| one.id.cmp(&two.id)));
    hits.truncate(k);
}

/// Searches segments as one, and joins their results with those that are there.
fn search_segments(
    segments: &[&SegmentState],
    queries: &[u8],
    options: &SearchOptions,
    all: &mut Answered,
) -> Result<()> {
    let together = Together::new(segments.iter().map(|own| &own.segment.index))?;
    let asked = EngineOptions {
        k: options.k,
        effort: Effort::Recall(options.recall),
        threads: options.threads,
        parts: if options.each_part_alone { PartsName::Each } else { PartsName::Whole },
        ..EngineOptions::default()
    };
    let filter = |(number, own): (usize, &&SegmentState)| {
        own.segment.index.filter_of(&own.left, &together.options_of(number, &asked))
    };
    let filters = segments.iter().enumerate().map(filter).collect::<stratann_storage::Result<Vec<_>>>()?;
    let filters: Vec<_> =
        filters.iter().map(|filter| filter.as_ref().map_or(Filters::None, Filters::Shared)).collect();
    let known: Vec<Vec<f32>> =
        all.hits.iter().map(|hits| hits.iter().map(|hit| hit.distance).collect()).collect();
    let known = if all.hits.iter().all(Vec::is_empty) { &[][..] } else { &known };
    let (answers, _) = together.search_parts(queries, (&filters, known), &asked, &Quiet)?;
    for (own, answers) in segments.iter().zip(&answers) {
        join(own, answers, options.k, all)?;
    }
    Ok(())
}

/// Joins the results of a segment with those that are there.
fn join(own: &SegmentState, answers: &Answers, k: usize, all: &mut Answered) -> Result<()> {
    if let Some((query, why)) = answers.failed.first() {
        return Err(Error::corrupt(format!(
            "{}: query {query} has no answer: {why}",
            own.segment.index.folder().display()
        )));
    }
    all.stats.add(&answers.stats);
    for (query, hits) in all.hits.iter_mut().enumerate() {
        // They are in order, and one that is farther than all that are wanted needs no id.
        let most = hits.get(k - 1).map_or(f32::INFINITY, |last| last.distance);
        for (ordinal, distance) in answers.results(query) {
            if distance <= most {
                let (id, _) = own.segment.id(ordinal)?;
                hits.push(Hit { id, distance: distance + 0.0 });
            }
        }
        nearest_first(hits, k);
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
        let is_in_memory =
            in_memory.peek().is_some_and(|own| least.as_ref().is_none_or(|(_, id)| own.id < *id));
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

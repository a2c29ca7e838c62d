//! A query over all parts of a state: the points in memory and each segment.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use roaring::RoaringBitmap;
use stratann_core::query::QueryStats;
use stratann_engine::index::LeftRows;
use stratann_engine::search::{Answers, Effort, Filters, SearchOptions as EngineOptions, Together};
use stratann_params::choices::PartsName;
use stratann_payload::index::Unindexed;
use stratann_storage::Quiet;

use super::delta::{DeltaStats, Hit, InMemory, Point, Searching, SegmentState, State, Wanted};
use super::error::{Error, Result};
use super::options::SearchOptions;
use super::sieves::{FilterStats, Filtered};
use super::spec::VectorsOf;
use crate::rows::ExternalId;
use crate::segments::{NamedIndex, Place, WantedRows};

/// Most bytes of payloads that are returned at once, of results or of points that are asked for by their ids.
pub(super) const PAYLOADS_BYTES_MAX: usize = 64 << 20;

/// Results of several queries, and what they cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answered {
    /// Results of each query.
    pub(super) hits: Vec<Vec<Hit>>,
    /// Sum over all queries and segments.
    pub(super) stats: QueryStats,
    /// Sum over all queries.
    pub(super) delta: DeltaStats,
    /// What the filter cost.
    pub(super) filter: FilterStats,
    /// Conditions of the filter for which payloads were read.
    pub(super) unindexed: Vec<Unindexed>,
}

/// Where a result is.
enum Found<'a> {
    /// In memory, with its content.
    Point(ExternalId, InMemory<'a>),
    /// In a segment, whose ids are read once it is known which results are left.
    Row(&'a SegmentState, u64),
}

/// Results of a query so far, nearest first: `k` of them, and others as far as the last one.
#[derive(Default)]
struct Nearest<'a> {
    found: Vec<(f32, Found<'a>)>,
}

/// Results of all queries so far.
struct Searched<'a> {
    nearest: Vec<Nearest<'a>>,
    stats: QueryStats,
    searching: Searching,
}

impl<'a> Nearest<'a> {
    /// Takes results of a part in.
    fn join(&mut self, found: impl Iterator<Item = (f32, Found<'a>)>, k: usize) {
        let bound = self.bound(k);
        let before = self.found.len();
        self.found.extend(found.filter(|(distance, _)| *distance <= bound));
        if self.found.len() > before {
            self.found.sort_by(|one, two| one.0.total_cmp(&two.0));
            let bound = self.bound(k);
            let left = self.found.partition_point(|(distance, _)| *distance <= bound);
            self.found.truncate(left);
        }
    }

    /// The distance beyond which nothing is a result.
    fn bound(&self, k: usize) -> f32 {
        self.found.get(k - 1).map_or(f32::INFINITY, |last| last.0)
    }

    /// The results with their ids. Ties are in the order of ids.
    fn into_hits(self, k: usize) -> Result<Vec<(Hit, Its<'a>)>> {
        let hit = |(distance, found)| {
            let (id, its) = match found {
                Found::Point(id, content) => (id, Its::Content(content)),
                Found::Row(own, ordinal) => {
                    let (id, place) = own.segment.id(ordinal)?;
                    (id, Its::Row(own, place))
                }
            };
            Ok((Hit { id, distance, payload: None, vector: None }, its))
        };
        let mut hits = self.found.into_iter().map(hit).collect::<Result<Vec<_>>>()?;
        hits.sort_by(|(one, _), (two, _)| {
            one.distance.total_cmp(&two.distance).then_with(|| one.id.cmp(&two.id))
        });
        hits.truncate(k);
        Ok(hits)
    }
}

/// Where the content of a result is.
enum Its<'a> {
    Content(InMemory<'a>),
    Row(&'a SegmentState, Place),
}

impl Its<'_> {
    /// The vector of a name, as it was given.
    ///
    /// # Errors
    /// `Corrupt` and `Io` of a segment.
    fn vector(&self, name: usize) -> Result<Vec<u8>> {
        match self {
            Its::Content(content) => Ok(content.vector.to_vec()),
            Its::Row(own, place) => Ok(own.segment.vector(name, *place)?),
        }
    }
}

/// Counts bytes of payloads against those that may be returned.
fn spend(left: &mut usize, bytes: usize) -> stratann_storage::Result<()> {
    *left = left.checked_sub(bytes).ok_or_else(|| {
        stratann_storage::Error::bad_input(format!(
            "the payloads of all results have more than {PAYLOADS_BYTES_MAX} bytes; ask for fewer results"
        ))
    })?;
    Ok(())
}

/// Results with their payloads, of which so many bytes may be returned. Those of a segment are read together.
fn with_payloads(hits: Vec<(Hit, Its<'_>)>, left: &mut usize) -> Result<Vec<Hit>> {
    let mut wanted: BTreeMap<u64, (&SegmentState, RoaringBitmap)> = BTreeMap::new();
    for (_, its) in &hits {
        if let Its::Row(own, place) = its
            && own.overlay.get(place.row).is_none()
        {
            let of_segment = wanted.entry(own.segment.entry.number);
            of_segment.or_insert_with(|| (own, RoaringBitmap::new())).1.insert(place.row);
        }
    }
    let mut read: HashMap<u64, HashMap<u32, Vec<u8>>> = HashMap::new();
    for (number, (own, rows)) in wanted {
        if let Some(payloads) = &own.segment.payloads {
            read.insert(number, payloads.of_rows(&rows, |bytes| spend(left, bytes))?);
        }
    }
    let with_its_payload = |(hit, its): (Hit, Its<'_>)| {
        let newer = match &its {
            Its::Content(content) => content.payload.as_ref(),
            Its::Row(own, place) => own.overlay.get(place.row).and_then(|newer| newer.payload.as_ref()),
        };
        if let Some(json) = newer {
            spend(left, json.len())?;
            return Ok(Hit { payload: Some(json.to_vec()), ..hit });
        }
        let payload = match its {
            Its::Content(_) => None,
            Its::Row(own, place) => {
                read.get_mut(&own.segment.entry.number).and_then(|of_segment| of_segment.remove(&place.row))
            }
        };
        Ok(Hit { payload, ..hit })
    };
    hits.into_iter().map(with_its_payload).collect()
}

/// Searches a state: where most rows are first, whose distances bound the search of the others.
///
/// # Errors
/// Damage of a segment; no memory; `Io`.
pub(super) fn search(
    (state, filtered): (&State, Option<Filtered>),
    of: VectorsOf<'_>,
    queries: &[u8],
    options: &SearchOptions,
) -> Result<Answered> {
    let count = queries.len() / of.spec.row_bytes();
    let filter_stats = filtered.as_ref().map(Filtered::stats).unwrap_or_default();
    let (segments, unindexed, matches) = match filtered {
        Some(Filtered { segments, unindexed, matches, .. }) => {
            (Cow::Owned(segments), unindexed.into_iter().collect(), Some(matches))
        }
        None => (Cow::Borrowed(&state.segments[..]), Vec::new(), None),
    };
    let mut all = Searched {
        nearest: (0..count).map(|_| Nearest::default()).collect(),
        stats: QueryStats::default(),
        searching: Searching { matches, ..Searching::default() },
    };
    let segments = segments.iter().filter_map(|own| Part::of(own, of.name));
    let is_scanned = |own: &Part<'_>| own.index.scanned.is_some() && !options.scan_all_in_memory;
    let (scanned, segments): (Vec<_>, Vec<_>) = segments.partition(is_scanned);
    let rows_of = |some: &[Part<'_>]| some.iter().map(|own| own.index.rows()).sum::<u64>();
    if rows_of(&segments) >= state.rows() + rows_of(&scanned) {
        search_segments(&segments, queries, options, &mut all)?;
        search_memory(state, &scanned, (of, queries, options), &mut all);
    } else {
        search_memory(state, &scanned, (of, queries, options), &mut all);
        search_segments(&segments, queries, options, &mut all)?;
    }
    let mut left = PAYLOADS_BYTES_MAX;
    let hits = all.nearest.into_iter().map(|own| {
        let mut hits = own.into_hits(options.k)?;
        if options.with_vectors {
            hits.iter_mut()
                .try_for_each(|(hit, its)| its.vector(of.name).map(|own| hit.vector = Some(own)))?;
        }
        match options.with_payload {
            true => with_payloads(hits, &mut left),
            false => Ok(hits.into_iter().map(|(hit, _)| hit).collect()),
        }
    });
    let hits = hits.collect::<Result<_>>()?;
    let mut filter = filter_stats;
    if let Some(matches) = &all.searching.matches {
        matches.check()?;
        filter.payloads += matches.reads();
    }
    Ok(Answered { hits, stats: all.stats, delta: all.searching.stats, filter, unindexed })
}

/// The index of a segment that is searched, and its rows that are left.
#[derive(Clone, Copy)]
struct Part<'a> {
    own: &'a SegmentState,
    index: &'a NamedIndex,
    left: &'a LeftRows,
}

impl<'a> Part<'a> {
    /// The index of a name in a segment, unless none of its rows is left.
    fn of(own: &'a SegmentState, name: usize) -> Option<Part<'a>> {
        let (index, left) = (own.segment.index(name)?, own.left_in(name));
        (left.rows().count() > 0).then_some(Part { own, index, left })
    }

    /// A row that was found, by its id in the index.
    fn found(&self, id: u64) -> Found<'a> {
        Found::Row(self.own, self.index.ordinal(id))
    }
}

/// Searches the points in memory and the checkpoints.
fn search_memory<'a>(
    state: &'a State,
    scanned: &[Part<'a>],
    (of, queries, options): (VectorsOf<'_>, &[u8], &SearchOptions),
    all: &mut Searched<'a>,
) {
    let Searched { nearest, searching, .. } = all;
    for (query, nearest) in queries.chunks_exact(of.spec.row_bytes()).zip(nearest) {
        let (k, recall) = (options.k, options.recall);
        let wanted = Wanted { k, recall, bound: nearest.bound(k), all_rows: options.scan_all_in_memory };
        let found = state.nearest_points(of, query, &wanted, searching);
        let found = found.into_iter();
        nearest.join(found.map(|(hit, content)| (hit.distance, Found::Point(hit.id, content))), k);
        for own in scanned {
            scan(own, (query, nearest), options, searching);
        }
    }
}

/// Searches a checkpoint, whose rows are in memory.
fn scan<'a>(
    own: &Part<'a>,
    (query, nearest): (&[u8], &mut Nearest<'a>),
    options: &SearchOptions,
    searching: &mut Searching,
) {
    let Some(rows) = &own.index.scanned else { return };
    let (k, recall) = (options.k, options.recall);
    let wanted = WantedRows { left: own.left.rows(), k, recall, bound: nearest.bound(k) };
    let found = rows.search(query, &wanted, &mut searching.query);
    searching.stats.rows += own.index.rows();
    searching.stats.lists += found.scanned.lists;
    searching.stats.codes += found.scanned.codes;
    searching.stats.distances += found.distances;
    // The numbers of rows of a checkpoint are the ids of its index.
    let found = found.rows.into_iter().map(|(distance, row)| (distance, own.found(row.into())));
    nearest.join(found, k);
}

/// Searches segments as one, and joins their results with those that are there.
fn search_segments<'a>(
    segments: &[Part<'a>],
    queries: &[u8],
    options: &SearchOptions,
    all: &mut Searched<'a>,
) -> Result<()> {
    if segments.is_empty() {
        return Ok(());
    }
    let together = Together::new(segments.iter().map(|own| &*own.index.index))?;
    let is_filtered = options.filter.is_some();
    let is_each = options.each_part_alone || is_filtered && !are_even(segments);
    let asked = EngineOptions {
        k: options.k,
        effort: Effort::Recall(options.recall),
        threads: options.threads,
        parts: if is_each { PartsName::Each } else { PartsName::Whole },
        ..EngineOptions::default()
    };
    let filter = |(number, own): (usize, &Part<'_>)| {
        // Dead rows are everywhere by chance, and those of a filter may be in one segment.
        let own_options = if is_filtered { asked } else { together.options_of(number, &asked) };
        match options.way {
            Some(way) => own.index.index.filter_by_way(own.left, &own_options, way).map(Some),
            None => own.index.index.filter_of(own.left, &own_options),
        }
    };
    let filters = segments.iter().enumerate().map(filter).collect::<stratann_storage::Result<Vec<_>>>()?;
    let filters: Vec<_> =
        filters.iter().map(|filter| filter.as_ref().map_or(Filters::None, Filters::Shared)).collect();
    let distances = |own: &Nearest<'_>| own.found.iter().map(|(distance, _)| *distance).collect();
    let known: Vec<Vec<f32>> = all.nearest.iter().map(distances).collect();
    let known = if known.iter().all(Vec::is_empty) { &[][..] } else { &known };
    let (answers, _) = together.search_parts(queries, (&filters, known), &asked, &Quiet)?;
    for (own, answers) in segments.iter().zip(&answers) {
        join(own, answers, options.k, all)?;
    }
    Ok(())
}

/// Whether the rows that match are in all segments alike, as far as results can be expected of each by its rows.
fn are_even(segments: &[Part<'_>]) -> bool {
    let left = |own: &Part<'_>| u64::from(own.left.rows().count());
    let all: u64 = segments.iter().map(left).sum();
    let rows: u64 = segments.iter().map(|own| own.index.rows()).sum();
    segments.iter().all(|own| {
        let found = u128::from(left(own)) * u128::from(rows);
        let expected = u128::from(all) * u128::from(own.index.rows());
        found <= 2 * expected && expected <= 2 * found
    })
}

/// Joins the results of a segment with those that are there.
fn join<'a>(own: &Part<'a>, answers: &Answers, k: usize, all: &mut Searched<'a>) -> Result<()> {
    if let Some((query, why)) = answers.failed.first() {
        return Err(Error::corrupt(format!(
            "{}: query {query} has no answer: {why}",
            own.index.index.folder().display()
        )));
    }
    all.stats.add(&answers.stats);
    for (query, nearest) in all.nearest.iter_mut().enumerate() {
        let found = answers.results(query);
        nearest.join(found.map(|(id, distance)| (distance + 0.0, own.found(id))), k);
    }
    Ok(())
}

/// The point of an id that is in a segment.
///
/// # Errors
/// `Corrupt` and `Io` of a segment.
pub(super) fn point_in_segments(state: &State, id: &ExternalId) -> Result<Option<Point>> {
    let found = state.place_in_segments(id)?;
    found.map(|(own, place)| point_at(own, id.clone(), place)).transpose()
}

pub(super) fn point_at(own: &SegmentState, id: ExternalId, place: Place) -> Result<Point> {
    let (vectors, payload) = (own.segment.vectors(place)?, own.payload(place.row)?);
    Ok(Point { id, seq: own.seq_of(&place), vectors, payload })
}

/// Points in memory, which are in the order of ids and behind `after`, together with those in segments: the first
/// `limit` of all, or those that have about so many bytes; and whether there are more.
///
/// # Errors
/// `Corrupt` and `Io` of a segment.
pub(super) fn with_segments(
    segments: &[SegmentState],
    in_memory: Vec<Point>,
    after: Option<&ExternalId>,
    (limit, bytes): (usize, usize),
) -> Result<(Vec<Point>, bool)> {
    let mut streams = Vec::with_capacity(segments.len());
    for own in segments {
        let left = own.left.rows();
        let is_left = |next: &stratann_storage::Result<(ExternalId, Place)>| {
            next.as_ref().map_or(true, |(_, place)| left.has(place.row))
        };
        streams.push((own, own.segment.behind(after)?.filter(is_left).peekable()));
    }
    let mut in_memory = in_memory.into_iter().peekable();
    let (mut points, mut taken) = (Vec::with_capacity(limit.min(1024)), 0);
    loop {
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
        if !is_in_memory && least.is_none() {
            return Ok((points, false));
        }
        if points.len() >= limit || taken >= bytes {
            return Ok((points, true));
        }
        let next = match least.filter(|_| !is_in_memory).and_then(|(at, _)| streams.get_mut(at)) {
            None => in_memory.next(),
            Some((own, stream)) => {
                let next = stream.next().transpose()?;
                next.map(|(id, place)| point_at(own, id, place)).transpose()?
            }
        };
        taken += next.as_ref().map_or(0, Point::bytes);
        points.extend(next);
    }
}

//! A collection, as its users have it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::delta::{DeltaStats, Hit, Point, SegmentState, State};
use super::error::{Error, Result};
use super::limits::MemoryLimits;
use super::live::{Job, JobFacts, Live, Shared, Slot};
use super::options::SearchOptions;
use super::parts::{self, PAYLOADS_BYTES_MAX};
use super::sieves::{FilterStats, Filtered};
use super::spec::{Spec, Specs, VectorsOf};
use super::work::{
    Condition, Deleted, Done, GivenVectors, Upserted, VectorsChanged, Work, check_id, check_ids,
};
use crate::rows::ExternalId;
use stratann_core::query::QueryStats;
use stratann_params::IndexKind;
use stratann_payload::index::Unindexed;
use stratann_payload::{Predicate, Schema};
use stratann_storage::Progress;
use stratann_storage::budget::thread_cpu_ns;

/// Most results of a query, and points of a page.
pub const LIMIT_MAX: usize = 16_384;
/// Most bytes of the vectors of a page, and of the queries of a search.
pub(super) const PAGE_BYTES_MAX: usize = 8 << 20;

/// A collection of a node. Clones are the same collection.
#[derive(Clone)]
pub struct Collection {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Arc<Slot>,
}

/// An immutable part of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Its number in the collection; none is given twice.
    pub number: u64,
    /// Kind of its index; `None` where vectors have names.
    pub kind: Option<IndexKind>,
    /// The index of each name of vectors that some point has, where vectors have names.
    pub indexes: Vec<IndexFacts>,
    /// Points, those that are dead by now included.
    pub rows: u64,
    /// Points that are deleted, or have newer vectors elsewhere.
    pub dead: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The index of a name of vectors in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFacts {
    /// The name.
    pub vector_name: String,
    /// Kind of the index.
    pub kind: IndexKind,
    /// Points with a vector of the name, those that are dead by now included.
    pub rows: u64,
}

/// What a collection is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Sequence number of the newest change.
    pub seq: u64,
    /// Points.
    pub points: u64,
    /// Points that are in memory and in the rows, and in no segment.
    pub delta_points: u64,
    /// Memory that is reserved for them, bytes.
    pub delta_bytes: u64,
    /// Segments, the largest first.
    pub segments: Vec<SegmentFacts>,
    /// Indexes that checkpoints and merges have built since the data folder was opened.
    pub indexes_built: u64,
    /// Segments whose payloads were written again since then, while their indexes stayed.
    pub payloads_folded: u64,
    /// Rows of merged segments whose neighbours in a graph were taken over from an older one, since the folder was
    /// opened.
    pub rows_taken_over: u64,
    /// Why the last checkpoint or merge failed, if it did. It is tried again.
    pub trouble: Option<Error>,
    /// Kinds of jobs that wait or run: `checkpoint`, `merge`.
    pub jobs: Vec<&'static str>,
    /// How far the jobs are that run in the background.
    pub progress: Vec<JobFacts>,
    /// Memory of its points and of its open segments, bytes.
    pub memory_bytes: u64,
    /// Limits of that memory.
    pub limits: MemoryLimits,
}

impl SegmentFacts {
    fn of(own: &SegmentState, specs: &Specs) -> Result<SegmentFacts> {
        let entry = &own.segment.entry;
        let indexes = entry.all_indexes().into_iter().map(|index| {
            let kind = IndexKind::parse(&index.kind);
            let unknown = || Error::corrupt(format!("segment {} is of no known kind", entry.number));
            let vector_name = specs.iter().nth(index.name).map_or_else(String::new, |own| own.name.clone());
            Ok(IndexFacts { vector_name, kind: kind.ok_or_else(unknown)?, rows: index.rows })
        });
        let indexes = indexes.collect::<Result<Vec<_>>>()?;
        let only = indexes.first().filter(|_| !specs.has_names()).map(|own| own.kind);
        Ok(SegmentFacts {
            number: entry.number,
            kind: only,
            indexes: if specs.has_names() { indexes } else { Vec::new() },
            rows: entry.rows,
            dead: entry.rows - u64::from(own.left.rows().count()),
            bytes: entry.bytes,
        })
    }
}

/// Results of a search, all of one state of the collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Sequence number of the newest change that the search saw. It saw all earlier ones.
    pub seq: u64,
    /// Nearest points of each query, nearest first; ties are in the order of ids.
    pub hits: Vec<Vec<Hit>>,
    /// What the segments cost, summed over all queries.
    pub stats: QueryStats,
    /// What the points in memory cost.
    pub delta: DeltaStats,
    /// What the filter cost.
    pub filter: FilterStats,
    /// Conditions of the filter for which payloads were read, for want of an index.
    pub unindexed: Vec<Unindexed>,
}

/// Points in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The points.
    pub points: Vec<Point>,
    /// Id behind which the next page begins; `None` at the end.
    pub next: Option<ExternalId>,
    /// Sequence number of the newest change that the page has.
    pub seq: u64,
    /// Conditions of the filter for which payloads were read, for want of an index.
    pub unindexed: Vec<Unindexed>,
}

impl Page {
    pub(super) fn new((points, seq): (Vec<Point>, u64), has_more: bool, unindexed: Vec<Unindexed>) -> Page {
        let next = points.last().filter(|_| has_more).map(|point| point.id.clone());
        Page { points, next, seq, unindexed }
    }
}

impl Collection {
    /// Name of the collection.
    pub fn name(&self) -> &str {
        &self.slot.name
    }

    /// The vectors that its points may have.
    pub fn specs(&self) -> &Specs {
        &self.slot.specs
    }

    /// Shape of its vectors, where they have no names.
    ///
    /// # Errors
    /// `BadInput` that lists the names, where they have some.
    pub fn spec(&self) -> Result<Spec> {
        self.slot.specs.only().copied().map_err(|e| e.of_collection(self.name()))
    }

    /// Folder of its segments, which goes when it is dropped. It may not be there yet.
    pub fn folder(&self) -> PathBuf {
        self.shared.folder_of(self.slot.id)
    }

    /// Writes points, each in place of an earlier one of its id: all or none. `vectors` has `dim` components for each
    /// id, little-endian. When it returns, they are durable, and every later search sees them.
    ///
    /// # Errors
    /// `BadInput` for NaN, infinities, other shapes, no points, ids that are too long, and more than 8 MiB; `Busy` for
    /// more points in memory than may wait, and more than memory or the quota of the collection allows; `ReadOnly`;
    /// `Unknown` when writing failed midway; `Missing`; `Corrupt` and `Io` of the rows. But for `Unknown`, nothing was
    /// written.
    pub fn upsert(&self, ids: &[ExternalId], vectors: &[u8]) -> Result<Upserted> {
        self.upsert_points(ids, vectors, &[])
    }

    /// As [`Collection::upsert`], with payloads: for each id a JSON object in UTF-8 or nothing, or none at all. A
    /// payload without fields is none. An earlier payload of the id does not stay.
    ///
    /// # Errors
    /// As [`Collection::upsert`]; `BadInput` that names the place of the point for a payload that is no JSON object, or
    /// has more than 1 MiB or 100 levels.
    pub fn upsert_points(
        &self,
        ids: &[ExternalId],
        vectors: &[u8],
        payloads: &[Option<&[u8]>],
    ) -> Result<Upserted> {
        self.upsert_if(ids, vectors, payloads, Condition::Always)
    }

    /// As [`Collection::upsert_points`], of points for which a condition holds. Of several points of an id the last one
    /// counts.
    ///
    /// # Errors
    /// As [`Collection::upsert_points`].
    pub fn upsert_if(
        &self,
        ids: &[ExternalId],
        vectors: &[u8],
        payloads: &[Option<&[u8]>],
        condition: Condition,
    ) -> Result<Upserted> {
        self.upsert_named(ids, &[GivenVectors { name: "", vectors, has: None }], payloads, condition)
    }

    /// As [`Collection::upsert_if`], with vectors by name. A point has no vector of a name that is not given, or of
    /// which `has` says so; it may have none at all. An earlier point of the id is replaced as a whole.
    ///
    /// # Errors
    /// As [`Collection::upsert_points`]; `BadInput` for a name that is none, which lists those there are.
    pub fn upsert_named(
        &self,
        ids: &[ExternalId],
        vectors: &[GivenVectors<'_>],
        payloads: &[Option<&[u8]>],
        condition: Condition,
    ) -> Result<Upserted> {
        let work = Work::upsert(&self.slot.specs, ids, vectors, payloads);
        self.upserted(work.map(|work| work.only(condition)))
    }

    /// Changes some vectors of points that are there: all or none. Names that are not given stay as they are, as the
    /// payload does; where `has` says that a point has none, its vector is removed. Of several of an id the last one
    /// counts. Each point is written again as a whole.
    ///
    /// # Errors
    /// As [`Collection::upsert_named`]; `BadInput` for an id without a point, and where a point without names would
    /// lose its only vector.
    pub fn update_vectors(&self, ids: &[ExternalId], vectors: &[GivenVectors<'_>]) -> Result<VectorsChanged> {
        let done = self.upserted(Work::update_vectors(&self.slot.specs, ids, vectors))?;
        Ok(VectorsChanged { seq: done.seq, changed: done.replaced })
    }

    fn upserted(&self, work: Result<Work>) -> Result<Upserted> {
        match self.slot.change(&self.shared, work.map_err(|e| e.of_collection(self.name()))?)? {
            Done::Upserted(done) => Ok(done),
            other => Err(other.of_another()),
        }
    }

    /// Removes the points of ids: all or none. Ids without a point are counted.
    ///
    /// # Errors
    /// As [`Collection::upsert`], but never `Busy`.
    pub fn delete(&self, ids: &[ExternalId]) -> Result<Deleted> {
        let work = Work::delete(ids).map_err(|e| e.of_collection(self.name()))?;
        match self.slot.change(&self.shared, work)? {
            Done::Deleted(done) => Ok(done),
            other => Err(other.of_another()),
        }
    }

    /// The `k` nearest points of each query by exact distances, fewer where there are fewer. `queries` has `dim`
    /// components for each query, little-endian, at most 8 MiB.
    ///
    /// # Errors
    /// `BadInput` for queries of another shape, NaN and infinities, and for `k` beyond 1 to [`LIMIT_MAX`]; `Missing`;
    /// `Busy`, `Corrupt` and `Io` of opening the collection.
    pub fn search(&self, queries: &[u8], k: usize) -> Result<Found> {
        self.search_with(queries, &SearchOptions { k, ..SearchOptions::default() })
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`Collection::search`]; `BadInput` for a recall beyond 0 to 1, and no thread; `Corrupt` and `Io` of payloads.
    pub fn search_with(&self, queries: &[u8], options: &SearchOptions) -> Result<Found> {
        let of = self.slot.specs.find(options.vector_name.as_deref()).and_then(|(name, spec)| {
            check_limit(options.k, LIMIT_MAX, "results")?;
            check_queries(spec, queries)?;
            options.check().map(|()| VectorsOf { name, spec })
        });
        let of = of.map_err(|e| e.of_collection(self.name()))?;
        let state = self.live()?.delta.state();
        let begin = self.shared.pace.measures_next().then(|| (Instant::now(), thread_cpu_ns()));
        let filter = options.filter.as_ref().filter(|filter| !filter.is_all());
        let filtered = filter.map(|filter| self.filtered(&state, filter, Some(of.name))).transpose();
        let found = filtered.and_then(|own| parts::search((&state, own), of, queries, options));
        if let Some((begin, cpu)) = begin {
            let waited = (begin.elapsed().as_nanos() as u64).saturating_sub(thread_cpu_ns() - cpu);
            self.shared.pace.note(waited / (queries.len() / of.spec.row_bytes()).max(1) as u64);
        }
        let found = found.map_err(|e| e.of_collection(self.name()))?;
        let parts::Answered { hits, stats, delta, filter, unindexed } = found;
        Ok(Found { seq: state.seq, hits, stats, delta, filter, unindexed })
    }

    /// What the collection is made of.
    ///
    /// # Errors
    /// As [`Collection::count`].
    pub fn facts(&self) -> Result<Facts> {
        let live = self.live()?;
        let state = live.delta.state();
        let delta_bytes = live.lock().bytes();
        let segments = state.segments.iter().map(|own| SegmentFacts::of(own, &self.slot.specs));
        let mut segments = segments.collect::<Result<Vec<_>>>()?;
        segments.sort_by_key(|own| (std::cmp::Reverse(own.rows), own.number));
        let troubles = self.slot.trouble.lock().unwrap_or_else(|e| e.into_inner()).clone();
        let trouble = troubles.into_iter().flatten().next();
        let account = self.shared.memory.account(self.slot.id);
        Ok(Facts {
            indexes_built: self.slot.indexes_built.load(Ordering::Relaxed),
            payloads_folded: self.slot.payloads_folded.load(Ordering::Relaxed),
            rows_taken_over: self.slot.rows_taken_over.load(Ordering::Relaxed),
            seq: state.seq,
            points: state.points(),
            delta_points: state.tail_points(),
            delta_bytes,
            segments,
            trouble,
            jobs: self.slot.jobs().map(Job::name).collect(),
            progress: self.slot.progress(),
            memory_bytes: account.used,
            limits: account.limits,
        })
    }

    /// Has these fields of payloads indexed, and no others: at once in segments that are made from now on; in those
    /// that there are once their payloads were read, in the background or by [`Collection::compact`]. Until then
    /// conditions on other fields read payloads. No index of vectors is made.
    ///
    /// # Errors
    /// `BadInput` for more than 1,000 fields; `Unknown` when writing failed midway: then [`Collection::schema`] tells;
    /// `Missing`; `Corrupt` and `Io` of the rows.
    pub fn set_schema(&self, schema: &Schema) -> Result<()> {
        self.slot.set_schema(&self.shared, schema).map_err(|e| e.of_collection(self.name()))
    }

    /// Fields of payloads that are indexed.
    ///
    /// # Errors
    /// `Missing`; `Corrupt` and `Io` of the rows.
    pub fn schema(&self) -> Result<Schema> {
        self.live()?;
        let schema = self.slot.schema(&self.shared).map_err(|e| e.of_collection(self.name()))?;
        Ok(Schema::clone(&schema))
    }

    /// Number of points.
    ///
    /// # Errors
    /// `Missing`; `Busy`, `Corrupt` and `Io` of opening the collection.
    pub fn count(&self) -> Result<u64> {
        Ok(self.live()?.delta.state().points())
    }

    /// Sequence number of the newest change that a search sees; 0 before the first one.
    ///
    /// # Errors
    /// As [`Collection::count`].
    pub fn seq(&self) -> Result<u64> {
        Ok(self.live()?.delta.state().seq)
    }

    /// Points of ids, with their vectors as they were given and their payloads; `None` for an id without one.
    ///
    /// # Errors
    /// `BadInput` for no ids, ids that are too long, or more than have 8 MiB of vectors, 64 MiB of payloads or
    /// [`LIMIT_MAX`]; and as [`Collection::count`].
    pub fn get(&self, ids: &[ExternalId]) -> Result<Vec<Option<Point>>> {
        let checked = check_ids(ids).and_then(|()| check_limit(ids.len(), self.page_points(), "ids"));
        checked.map_err(|e| e.of_collection(self.name()))?;
        let (points, state) = self.live()?.delta.reader().points(ids);
        let mut bytes = 0;
        let found = ids.iter().zip(points).map(|(id, point)| {
            let point = match point {
                Some(point) => Some(point),
                None => parts::point_in_segments(&state, id)?,
            };
            bytes += point.as_ref().and_then(|point| point.payload.as_ref()).map_or(0, Vec::len);
            if bytes > PAYLOADS_BYTES_MAX {
                return Err(Error::bad_input(format!(
                    "the payloads of {} ids have more than {PAYLOADS_BYTES_MAX} bytes; ask for fewer at once",
                    ids.len()
                )));
            }
            Ok(point)
        });
        found.collect::<Result<_>>().map_err(|e| e.of_collection(self.name()))
    }

    /// Points behind `after` in the order of ids, at most `limit` of them and about 8 MiB of vectors and payloads.
    ///
    /// # Errors
    /// `BadInput` for a limit beyond 1 to [`LIMIT_MAX`]; and as [`Collection::count`].
    pub fn scroll(&self, after: Option<&ExternalId>, limit: usize) -> Result<Page> {
        let checked = check_limit(limit, LIMIT_MAX, "points").and_then(|()| after.map_or(Ok(()), check_id));
        checked.map_err(|e| e.of_collection(self.name()))?;
        let most = (limit.min(self.page_points()), PAGE_BYTES_MAX);
        let (points, state) = self.live()?.delta.reader().points_after(after, most);
        let page = parts::with_segments(&state.segments, points, after, most);
        let (points, has_more) = page.map_err(|e| e.of_collection(self.name()))?;
        Ok(Page::new((points, state.seq), has_more, Vec::new()))
    }

    /// Whether a change is there, after its outcome was unknown in this process. Opens the rows again where they stand
    /// still.
    ///
    /// # Errors
    /// As [`Collection::count`]; then it is still not known.
    pub fn is_there(&self, seq: u64) -> Result<bool> {
        self.shared.rows.check_process()?;
        let mut turn = self.slot.turn();
        self.slot.live_in_turn(&self.shared, &mut turn)?;
        Ok(turn.has(seq))
    }

    /// Writes the points in memory into a segment. Returns when that is done.
    ///
    /// # Errors
    /// As [`Collection::compact`].
    pub fn checkpoint(&self, progress: &dyn Progress) -> Result<()> {
        self.slot.checkpoint(&self.shared, progress)
    }

    /// Writes the points in memory into a segment, and makes one segment of all. Returns when that is done.
    ///
    /// # Errors
    /// A disk that is full or fails; memory; damage; an interruption. Then the collection is as it was, and what was
    /// done before stays.
    pub fn compact(&self, progress: &dyn Progress) -> Result<()> {
        self.slot.compact(&self.shared, progress)
    }

    /// Has the same done in the background, unless that waits already. A process that ends meanwhile forgets it;
    /// [`Facts::jobs`] and [`Facts::trouble`] say what becomes of it.
    ///
    /// # Errors
    /// `BadInput` for a node without threads for jobs; `ReadOnly`; `Missing`.
    pub fn compact_later(&self) -> Result<()> {
        self.shared.rows.check_process()?;
        self.slot.check_dropped()?;
        self.shared.check_writable()?;
        self.slot.compact_later(&self.shared).map_err(|e| e.of_collection(self.name()))
    }

    /// Evaluates a filter on a state.
    pub(super) fn filtered(
        &self,
        state: &State,
        filter: &Arc<Predicate>,
        name: Option<usize>,
    ) -> Result<Filtered> {
        let of_state = (state, &self.slot.specs);
        Filtered::new(&self.shared.sieves, self.slot.id, of_state, (filter, name))
    }

    pub(super) fn live(&self) -> Result<Arc<Live>> {
        self.slot.live(&self.shared)
    }

    /// Most points of a page: about 8 MiB of vectors, at most [`LIMIT_MAX`].
    pub fn page_points(&self) -> usize {
        (PAGE_BYTES_MAX / self.slot.specs.row_bytes().max(1)).clamp(1, LIMIT_MAX)
    }
}

fn check_queries(spec: &Spec, queries: &[u8]) -> Result<()> {
    spec.check_vectors(queries, "query")?;
    if queries.len() > PAGE_BYTES_MAX {
        let (bytes, most) = (queries.len(), PAGE_BYTES_MAX);
        return Err(Error::bad_input(format!("{bytes} bytes of queries; give at most {most} at once")));
    }
    Ok(())
}

pub(super) fn check_limit(count: usize, most: usize, what: &str) -> Result<()> {
    match count {
        0 => Err(Error::bad_input(format!("0 {what}; ask for 1 to {most}"))),
        count if count > most => Err(Error::bad_input(format!("{count} {what}; ask for 1 to {most}"))),
        _ => Ok(()),
    }
}

//! Points that match a filter: counted, read and deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use stratann_payload::index::Unindexed;
use stratann_payload::value::Update;
use stratann_payload::{Path, Payload, Predicate};

use super::collection::{Collection, LIMIT_MAX, PAGE_BYTES_MAX, Page, check_limit};
use super::delta::State;
use super::error::{Error, Result};
use super::parts;
use super::sieves::{FilterStats, Filtered};
use super::work::{Done, PayloadChanged, Work, check_id};
use crate::rows::ExternalId;

/// Most points that one change of a delete by a filter removes.
const DELETED_AT_ONCE: usize = 4096;

/// Most points whose payloads one change by a filter changes.
const CHANGED_AT_ONCE: usize = 1024;

/// Points whose payloads are changed.
#[derive(Clone, Copy, Debug)]
pub enum Chosen<'a> {
    /// Those of these ids.
    Ids(&'a [ExternalId]),
    /// Those that match.
    Matching(&'a Arc<Predicate>),
}

/// How many points match a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Sequence number of the newest change that is counted.
    pub seq: u64,
    /// Points that match.
    pub points: u64,
    /// Conditions for which payloads were read, for want of an index.
    pub unindexed: Vec<Unindexed>,
    /// What that cost.
    pub filter: FilterStats,
}

/// What was done with the points that matched a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedMatching {
    /// Sequence number of the last change; the newest one where no point matched.
    pub seq: u64,
    /// Points that are gone.
    pub deleted: u64,
    /// Points that matched and were changed or deleted by others before they could be deleted. Changed ones are there.
    pub changed: u64,
    /// Changes that were made, one after another.
    pub changes: u64,
    /// Conditions for which payloads were read, for want of an index.
    pub unindexed: Vec<Unindexed>,
}

impl Collection {
    /// Refuses a filter with conditions for which payloads of segments would be read, for want of an index. Without
    /// this check they are read, and named in the reply.
    ///
    /// # Errors
    /// `BadInput` that names these conditions and what to do; and as [`Collection::count`].
    pub fn check_indexed(&self, filter: &Predicate) -> Result<()> {
        let state = self.live()?.delta.state();
        let named = |e: Error| e.of_collection(self.name());
        let schema = self.slot.schema(&self.shared).map_err(named)?;
        let texts = |missing: BTreeSet<Unindexed>| {
            missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let missing = filter.unindexed(&schema);
        if !missing.is_empty() {
            return Err(named(Error::bad_input(format!(
                "no index answers conditions of the filter: {}; make one (`stratann collection schema --set`, \
                 set_schema in Python, PUT …/schema over HTTP), or leave indexed_only out",
                texts(missing)
            ))));
        }
        let left = state.segments.iter().filter(|own| own.left.rows().count() > 0);
        let of_segments = left.filter_map(|own| own.segment.payloads.as_ref());
        let missing: BTreeSet<Unindexed> =
            of_segments.flat_map(|payloads| filter.unindexed(&payloads.schema())).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(named(Error::bad_input(format!(
                "indexes are not made yet in all segments: {}; wait until no job runs, compact the collection, or \
                 leave indexed_only out",
                texts(missing)
            )))),
        }
    }

    /// Number of points that match.
    ///
    /// # Errors
    /// As [`Collection::count`].
    pub fn count_matching(&self, filter: &Arc<Predicate>) -> Result<Counted> {
        let state = self.live()?.delta.state();
        let counted = self.filtered(&state, filter, None).and_then(|mut filtered| {
            let points = state.count_matching(&mut filtered.matches);
            filtered.matches.check()?;
            let stats = filtered.stats();
            let unindexed = filtered.unindexed.into_iter().collect();
            Ok(Counted { seq: state.seq, points: points + stats.rows, unindexed, filter: stats })
        });
        counted.map_err(|e| e.of_collection(self.name()))
    }

    /// As [`Collection::scroll`], of the points that match.
    ///
    /// # Errors
    /// As [`Collection::scroll`].
    pub fn scroll_matching(
        &self,
        after: Option<&ExternalId>,
        limit: usize,
        filter: &Arc<Predicate>,
    ) -> Result<Page> {
        let checked = check_limit(limit, LIMIT_MAX, "points").and_then(|()| after.map_or(Ok(()), check_id));
        checked.map_err(|e| e.of_collection(self.name()))?;
        let most = (limit.min(self.page_points()), PAGE_BYTES_MAX);
        let state = self.live()?.delta.state();
        let page = self.filtered(&state, filter, None).and_then(|mut filtered| {
            let points = state.points_matching(&mut filtered.matches, after, most);
            filtered.matches.check()?;
            let (points, has_more) = parts::with_segments(&filtered.segments, points, after, most)?;
            Ok(Page::new((points, state.seq), has_more, filtered.unindexed.into_iter().collect()))
        });
        page.map_err(|e| e.of_collection(self.name()))
    }

    /// Deletes the points that match now, in several changes where they are many. A point that others change meanwhile
    /// stays.
    ///
    /// # Errors
    /// As [`Collection::delete`]. Earlier changes stay.
    pub fn delete_matching(&self, filter: &Arc<Predicate>) -> Result<DeletedMatching> {
        let state = self.live()?.delta.state();
        let found = self.filtered(&state, filter, None).map_err(|e| e.of_collection(self.name()))?;
        let mut done = DeletedMatching { seq: state.seq, ..DeletedMatching::default() };
        done.unindexed = found.unindexed.iter().cloned().collect();
        self.each_matching(&state, found, DELETED_AT_ONCE, &mut |points| {
            let (ids, seqs) = points.into_iter().unzip();
            let work = Work::delete_unchanged(ids, seqs)?;
            match self.slot.change(&self.shared, work)? {
                Done::Deleted(own) => {
                    done.seq = own.seq;
                    done.deleted += own.deleted;
                    done.changed += own.unknown;
                    done.changes += u64::from(own.deleted > 0);
                    Ok(())
                }
                other => Err(other.of_another()),
            }
        })?;
        Ok(done)
    }

    /// Changes payloads of points: those of ids all at once or not at all; those that match a filter now in several
    /// changes where they are many, without points that others change meanwhile. No vector is written of a point in a
    /// segment.
    ///
    /// # Errors
    /// As [`Collection::upsert`]; `BadInput` for a payload that would be beyond its limits, which names its point.
    pub fn change_payload(&self, chosen: Chosen<'_>, update: Update) -> Result<PayloadChanged> {
        let update = Arc::new(update);
        match chosen {
            Chosen::Ids(ids) => {
                let work = Work::update(ids, &update).map_err(|e| e.of_collection(self.name()))?;
                match self.slot.change(&self.shared, work)? {
                    Done::Payload(done) => Ok(done),
                    other => Err(other.of_another().of_collection(self.name())),
                }
            }
            Chosen::Matching(filter) => {
                let state = self.live()?.delta.state();
                let found = self.filtered(&state, filter, None).map_err(|e| e.of_collection(self.name()))?;
                let mut sum = PayloadChanged { seq: state.seq, ..PayloadChanged::default() };
                self.each_matching(&state, found, CHANGED_AT_ONCE, &mut |points| {
                    self.change_some(points, &update, &mut sum)
                })?;
                Ok(sum)
            }
        }
    }

    /// Changes payloads in one change, or in several where they are large.
    fn change_some(
        &self,
        points: Vec<(ExternalId, u64)>,
        update: &Arc<Update>,
        sum: &mut PayloadChanged,
    ) -> Result<()> {
        let mut waiting = vec![points];
        while let Some(mut points) = waiting.pop() {
            let (ids, seqs) = points.iter().cloned().unzip();
            let work = Work::update_unchanged(ids, seqs, update)?;
            match self.slot.change(&self.shared, work)? {
                Done::Payload(done) => {
                    sum.seq = done.seq;
                    sum.changed += done.changed;
                    sum.unchanged += done.unchanged;
                    sum.unknown += done.unknown;
                    sum.changes += done.changes;
                }
                Done::TooLarge(_) if points.len() > 1 => {
                    let rest = points.split_off(points.len() / 2);
                    waiting.extend([rest, points]);
                }
                other => return Err(other.of_another().of_collection(self.name())),
            }
        }
        Ok(())
    }

    /// Sets fields of payloads, at the top or in the objects that a path reaches; other fields stay.
    ///
    /// # Errors
    /// As [`Collection::change_payload`]; `BadInput` for bytes that are no JSON object.
    pub fn set_payload(&self, chosen: Chosen<'_>, json: &[u8], key: Option<&Path>) -> Result<PayloadChanged> {
        let payload = Payload::parse(json)?;
        self.change_payload(chosen, Update::Set { payload, key: key.cloned() })
    }

    /// Puts a payload in place of earlier ones.
    ///
    /// # Errors
    /// As [`Collection::set_payload`].
    pub fn overwrite_payload(&self, chosen: Chosen<'_>, json: &[u8]) -> Result<PayloadChanged> {
        self.change_payload(chosen, Update::Overwrite(Payload::parse(json)?))
    }

    /// Removes what these paths reach.
    ///
    /// # Errors
    /// As [`Collection::change_payload`].
    pub fn delete_payload_keys(&self, chosen: Chosen<'_>, keys: &[Path]) -> Result<PayloadChanged> {
        self.change_payload(chosen, Update::DeleteKeys(keys.to_vec()))
    }

    /// Removes payloads.
    ///
    /// # Errors
    /// As [`Collection::change_payload`].
    pub fn clear_payload(&self, chosen: Chosen<'_>) -> Result<PayloadChanged> {
        self.change_payload(chosen, Update::Clear)
    }

    /// Passes the ids of all points that match, with the numbers of their changes, some at a time.
    fn each_matching(
        &self,
        state: &State,
        mut found: Filtered,
        at_once: usize,
        take: &mut dyn FnMut(Vec<(ExternalId, u64)>) -> Result<()>,
    ) -> Result<()> {
        let mut waiting = state.ids_matching(&mut found.matches);
        found.matches.check().map_err(|e| e.of_collection(self.name()))?;
        // Changes are made in the order of ids.
        waiting.sort_unstable();
        while waiting.len() >= at_once {
            let rest = waiting.split_off(at_once);
            take(std::mem::replace(&mut waiting, rest))?;
        }
        for own in &found.segments {
            let damaged = |e: stratann_storage::Error| Error::from(e).of_collection(self.name());
            for next in own.segment.behind(None).map_err(damaged)? {
                let (id, place) = next.map_err(damaged)?;
                if own.left.rows().has(place.row) {
                    waiting.push((id, own.seq_of(&place)));
                }
                if waiting.len() >= at_once {
                    take(std::mem::take(&mut waiting))?;
                }
            }
        }
        if waiting.is_empty() { Ok(()) } else { take(waiting) }
    }
}

//! Pages of points in the order of a field of their payloads.
//!
//! An index of payloads keeps the values of a field in their order, each with its row. Rows of equal values are not in
//! the order of ids: those of few rows are looked up, and among many the table of ids is walked.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use roaring::RoaringBitmap;
use stratann_payload::index::{SortField, Unindexed};
use stratann_payload::number::NumberKey;
use stratann_payload::{Payload, Predicate};

use super::collection::{Collection, LIMIT_MAX, PAGE_BYTES_MAX, check_limit};
use super::delta::{At, Matches, Point, SegmentState, State};
use super::error::{Error, Result};
use super::order::{Order, OrderBy, OrderPlace, Rank};
use super::parts;
use crate::rows::ExternalId;
use crate::segments::{Payloads, Place};

/// Values of a part of an index that keeps an order, and so about the rows that a look-up of one payload is worth.
const ENTRIES_OF_PART: u64 = 4096;
/// Ids of a page of a table of ids, about.
const IDS_OF_PAGE: u64 = 128;

/// Points in the order of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedPage {
    /// The points.
    pub points: Vec<Point>,
    /// Where the next page begins, for `after`; `None` at the end.
    pub next: Option<String>,
    /// Sequence number of the newest change that the page has.
    pub seq: u64,
    /// Conditions of the filter for which payloads were read, for want of an index.
    pub unindexed: Vec<Unindexed>,
    /// What it cost.
    pub stats: OrderStats,
}

/// What a page in the order of a field cost, beside its own points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Values of indexes that were compared.
    pub values: u64,
    /// Rows whose ids were looked up.
    pub ids: u64,
    /// Ids of tables that were walked.
    pub walked_ids: u64,
    /// Payloads that were read, in segments and in memory.
    pub payloads: u64,
}

impl Collection {
    /// Points that have a value in a field, in the order of these values: behind `after`, which is the `next` of the
    /// page before. At most `limit` of them and about 8 MiB of vectors and payloads.
    ///
    /// A point comes once: at its least value, in a descending order at its greatest. Pages follow one another also
    /// while the collection changes: a point whose value stays comes exactly once.
    ///
    /// # Errors
    /// `BadInput` for a field without an index that keeps an order, for one whose index is still being made, and for
    /// an `after` of another order; and as [`Collection::scroll`].
    pub fn scroll_ordered(
        &self,
        by: &OrderBy,
        after: Option<&str>,
        limit: usize,
        filter: Option<&Arc<Predicate>>,
    ) -> Result<OrderedPage> {
        let named = |e: Error| e.of_collection(self.name());
        check_limit(limit, LIMIT_MAX, "points").map_err(named)?;
        let state = self.live()?.delta.state();
        let page = || {
            let order = self.order(by)?;
            let after = after.map(|text| order.place(text)).transpose()?;
            let filtered = filter.map(|filter| self.filtered(&state, filter, None)).transpose()?;
            let (segments, mut matches, unindexed) = match filtered {
                Some(own) => (own.segments, Some(own.matches), own.unindexed),
                None => (state.segments.clone(), None, Default::default()),
            };
            let mut page = OrderedRows::new(&order, after, limit.min(self.page_points()));
            page.add_memory(&state, matches.as_mut())?;
            segments.iter().try_for_each(|own| page.add_segment(own))?;
            let stats = page.stats;
            let (points, next) = page.into_points(&state)?;
            let next = next.map(|place| order.text(&place));
            Ok(OrderedPage {
                points,
                next,
                seq: state.seq,
                unindexed: unindexed.into_iter().collect(),
                stats,
            })
        };
        page().map_err(named)
    }

    /// The order of a field, which the schema decides.
    fn order(&self, by: &OrderBy) -> Result<Order> {
        let schema = self.slot.schema(&self.shared)?;
        let field = SortField::of_schema(&schema, &by.field).ok_or_else(|| {
            let field = &by.field;
            Error::bad_input(format!(
                "the field {field} has no index that keeps an order; make one: `stratann collection schema --set \
                 {field}=float` (or integer, datetime), set_schema({{\"{field}\": \"float\"}}) in Python, PUT \
                 …/schema over HTTP"
            ))
        })?;
        Ok(Order { field, is_descending: by.descending })
    }
}

/// Where a point is.
enum Found<'a> {
    Memory(At),
    Row(&'a SegmentState, Place),
}

/// The first points behind a place, and one more.
struct OrderedRows<'a> {
    order: &'a Order,
    after: Option<OrderPlace>,
    limit: usize,
    found: BTreeMap<OrderPlace, Found<'a>>,
    stats: OrderStats,
}

impl<'a> OrderedRows<'a> {
    fn new(order: &'a Order, after: Option<OrderPlace>, limit: usize) -> OrderedRows<'a> {
        OrderedRows { order, after, limit, found: BTreeMap::new(), stats: OrderStats::default() }
    }

    /// Whether no point of this rank is among the first.
    fn is_beyond(&self, rank: Rank) -> bool {
        let last = self.found.last_key_value().filter(|_| self.found.len() > self.limit);
        last.is_some_and(|(last, _)| rank > last.rank)
            || self.after.as_ref().is_some_and(|own| rank < own.rank)
    }

    /// The id behind which points of this rank come.
    fn id_before(&self, rank: Rank) -> Option<&ExternalId> {
        self.after.as_ref().filter(|own| own.rank == rank).map(|own| &own.id)
    }

    /// Takes a point in, if it is among the first. Returns whether it is.
    fn offer(&mut self, place: OrderPlace, found: Found<'a>) -> bool {
        let is_full = self.found.len() > self.limit;
        let is_first = !is_full || self.found.last_key_value().is_some_and(|(last, _)| place < *last);
        if self.after.as_ref().is_some_and(|after| place <= *after) || !is_first {
            return false;
        }
        self.found.insert(place, found);
        if is_full {
            self.found.pop_last();
        }
        true
    }

    /// The rank of a payload as compact JSON; `None` of one that is not in the order.
    fn rank_of(&mut self, json: Option<&[u8]>) -> Result<Option<Rank>> {
        let Some(json) = json else { return Ok(None) };
        self.stats.payloads += 1;
        let payload = Payload::from_stored(json)
            .map_err(|why| Error::corrupt(format!("a stored payload is no JSON object: {why}")))?;
        let key = self.order.field.first_key(&payload, self.order.is_descending);
        Ok(key.map(|key| self.order.rank(key)))
    }

    /// Adds the points in memory, or those of them that match.
    fn add_memory(&mut self, state: &'a State, mut matches: Option<&mut Matches>) -> Result<()> {
        for (id, at, payload) in state.payloads() {
            let Some(rank) = self.rank_of(Some(payload))?.filter(|rank| !self.is_beyond(*rank)) else {
                continue;
            };
            if matches.as_mut().is_none_or(|matches| state.is_match(at, matches)) {
                self.offer(OrderPlace { rank, id: id.clone() }, Found::Memory(at));
            }
        }
        matches.map_or(Ok(()), |matches| matches.check())
    }

    /// Adds the rows of a segment that are left.
    fn add_segment(&mut self, own: &'a SegmentState) -> Result<()> {
        let left = own.left.rows();
        for (row, newer) in own.overlay.iter().filter(|(row, _)| left.has(*row)) {
            let rank = self.rank_of(newer.payload.as_deref())?;
            if let Some(rank) = rank.filter(|rank| !self.is_beyond(*rank)) {
                let (id, place) = own.segment.id(newer.ordinal.into())?;
                debug_assert_eq!(place.row, row);
                self.offer(OrderPlace { rank, id }, Found::Row(own, place));
            }
        }
        let Some(payloads) = &own.segment.payloads else { return Ok(()) };
        // Fewer payloads than the order has parts are read instead of the order.
        if u64::from(left.count()) * ENTRIES_OF_PART <= own.segment.rows() {
            return self.add_few(own, payloads);
        }
        if !payloads.sorts_by(&self.order.field) {
            let (field, segment) = (self.order.field.path(), own.segment.entry.number);
            return Err(Error::bad_input(format!(
                "the index of the field {field} is not made yet in segment {segment}; wait until no job runs, or \
                 compact the collection"
            )));
        }
        self.add_in_order(own, payloads)
    }

    /// Adds rows by their payloads.
    fn add_few(&mut self, own: &'a SegmentState, payloads: &Payloads) -> Result<()> {
        let rows: RoaringBitmap =
            own.left.rows().iter().filter(|row| own.overlay.get(*row).is_none()).collect();
        let mut ranks = Vec::new();
        payloads.for_rows(&rows, |row, json| {
            let rank = self.rank_of(Some(json)).map_err(|e| stratann_storage::Error::corrupt(e.message))?;
            ranks.extend(rank.map(|rank| (rank, row)));
            Ok(())
        })?;
        ranks.sort_unstable();
        for (rank, row) in ranks {
            if !self.is_beyond(rank) {
                self.add_row(own, rank, row)?;
            }
        }
        Ok(())
    }

    fn add_row(&mut self, own: &'a SegmentState, rank: Rank, row: u32) -> stratann_storage::Result<()> {
        self.stats.ids += 1;
        let (id, place) = own.segment.id_of_row(row)?;
        self.offer(OrderPlace { rank, id }, Found::Row(own, place));
        Ok(())
    }

    /// Adds rows as the index of payloads has them in order, until the others are beyond the page.
    fn add_in_order(&mut self, own: &'a SegmentState, payloads: &Payloads) -> Result<()> {
        let order = self.order;
        let several = payloads.several(&order.field)?;
        let from = self.after.as_ref().map(|after| order.key(after.rank));
        let (mut equal, mut rows): (Option<NumberKey>, Vec<u32>) = (None, Vec::new());
        payloads.in_order((&order.field, order.is_descending), from, |key, row| {
            self.stats.values += 1;
            if equal != Some(key) {
                self.add_equal(own, equal, &mut rows)?;
                if self.is_beyond(order.rank(key)) {
                    return Ok(ControlFlow::Break(()));
                }
                equal = Some(key);
            }
            let is_left = own.left.rows().has(row) && own.overlay.get(row).is_none();
            if is_left && (!several.contains(row) || self.is_first(payloads, row, key)?) {
                rows.push(row);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(self.add_equal(own, equal, &mut rows)?)
    }

    /// Whether a row with several values comes at this one.
    fn is_first(&mut self, payloads: &Payloads, row: u32, key: NumberKey) -> stratann_storage::Result<bool> {
        let json = payloads.get(row)?;
        let rank = self.rank_of(json.as_deref());
        let rank = rank.map_err(|e| stratann_storage::Error::corrupt(e.message))?;
        Ok(rank == Some(self.order.rank(key)))
    }

    /// Adds rows with equal values, and empties them.
    fn add_equal(
        &mut self,
        own: &'a SegmentState,
        key: Option<NumberKey>,
        rows: &mut Vec<u32>,
    ) -> stratann_storage::Result<()> {
        let Some(rank) = key.map(|key| self.order.rank(key)) else { return Ok(()) };
        let (equal, wanted) = (rows.len() as u64, self.limit as u64 + 1);
        // As many pages of ids as have the first ones of them.
        let pages = own.segment.rows() * wanted.min(equal) / (equal.max(1) * IDS_OF_PAGE) + 1;
        if equal <= pages {
            return rows.drain(..).try_for_each(|row| self.add_row(own, rank, row));
        }
        let equal: RoaringBitmap = rows.drain(..).collect();
        let before = self.id_before(rank).cloned();
        let mut left = equal.len().min(wanted);
        for next in own.segment.behind(before.as_ref())? {
            let (id, place) = next?;
            self.stats.walked_ids += 1;
            if !equal.contains(place.row) {
                continue;
            }
            left -= 1;
            // Those behind it have larger ids.
            if !self.offer(OrderPlace { rank, id }, Found::Row(own, place)) || left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// The points of the page, and the place of the last one where more follow.
    fn into_points(self, state: &State) -> Result<(Vec<Point>, Option<OrderPlace>)> {
        let (mut points, mut bytes) = (Vec::with_capacity(self.found.len()), 0);
        let mut last = None;
        for (place, found) in self.found {
            if points.len() >= self.limit || bytes >= PAGE_BYTES_MAX {
                return Ok((points, last));
            }
            let point = match found {
                Found::Memory(at) => state.point_at(at),
                Found::Row(own, at) => Some(parts::point_at(own, place.id.clone(), at)?),
            };
            bytes += point.as_ref().map_or(0, Point::bytes);
            points.extend(point);
            last = Some(place);
        }
        Ok((points, None))
    }
}

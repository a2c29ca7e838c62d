//! Points in memory that match the filter of a query.

use std::sync::Arc;

use stratann_payload::{IdValue, Payload, PointFacts, Predicate};

use super::Point;
use super::block::{Block, RowBits};
use super::sample::{Asked, sample};
use super::state::{At, State};
use crate::collections::error::{Error, Result};
use crate::collections::spec::Specs;
use crate::rows::ExternalId;

/// Rows of a state that match a predicate, as far as they were asked for. Each row is decided once.
pub(crate) struct Matches {
    specs: Specs,
    predicate: Arc<Predicate>,
    /// Number of the first block.
    first: u32,
    blocks: Vec<Decided>,
    /// Payloads that were read.
    reads: u64,
    /// What is wrong with the first payload that is none.
    failed: Option<String>,
}

/// Rows of a block that were decided, and those of them that match.
#[derive(Clone, Copy, Default)]
struct Decided {
    rows: RowBits,
    matching: RowBits,
}

/// What a filter may ask about a point in memory.
struct FactsOf<'a> {
    id: &'a ExternalId,
    /// Names of the vectors that it has.
    has: &'a dyn Fn(&str) -> bool,
}

impl PointFacts for FactsOf<'_> {
    fn has_id(&self, id: &IdValue) -> bool {
        self.id.is_named(id)
    }

    fn has_vector(&self, name: &str) -> bool {
        (self.has)(name)
    }
}

/// Whether a point matches. A payload is compact JSON.
///
/// # Errors
/// The text says what is wrong with the payload.
fn holds(predicate: &Predicate, facts: &FactsOf<'_>, payload: Option<&[u8]>) -> Result<bool, String> {
    let payload = payload.map_or_else(|| Ok(Payload::new()), Payload::from_stored)?;
    Ok(predicate.matches(&payload, facts))
}

impl Matches {
    /// Whether a row matches.
    pub(super) fn has(&mut self, at: At, block: &Block) -> bool {
        let own = at.block.checked_sub(self.first).and_then(|number| self.blocks.get_mut(number as usize));
        let (Some(own), Some(id)) = (own, block.id(at.row as usize)) else { return false };
        let row = at.row as usize;
        if !own.rows.has(row) {
            own.rows.insert(row);
            let payload = block.payload(row).map(|json| &**json);
            self.reads += u64::from(payload.is_some());
            let column = |name: &str| block.column(self.specs.position(name)?);
            let has = |name: &str| column(name).is_some_and(|column| column.get(row).is_some());
            match holds(&self.predicate, &FactsOf { id, has: &has }, payload) {
                Ok(true) => own.matching.insert(row),
                Ok(false) => {}
                Err(why) => _ = self.failed.get_or_insert(why),
            }
        }
        own.matching.has(row)
    }

    /// Payloads that were read.
    pub(crate) fn reads(&self) -> u64 {
        self.reads
    }

    /// Tells of a payload that could not be read.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check(&self) -> Result<()> {
        let why = self.failed.as_ref();
        why.map_or(Ok(()), |why| Err(Error::corrupt(format!("a payload in memory is no JSON object: {why}"))))
    }
}

impl State {
    /// Rows that match a predicate, none of which is decided.
    pub(crate) fn matches(&self, specs: &Specs, predicate: &Arc<Predicate>) -> Matches {
        let blocks = vec![Decided::default(); self.blocks.len()];
        let (specs, predicate) = (specs.clone(), predicate.clone());
        Matches { specs, predicate, first: self.first, blocks, reads: 0, failed: None }
    }

    /// Points in memory behind `after`, with their places, in no order.
    fn behind(&self, after: Option<&ExternalId>) -> impl Iterator<Item = (&ExternalId, At, &Block)> {
        let blocks = self.blocks.iter().zip(self.first..);
        let all = blocks.flat_map(|(own, block)| {
            own.live_rows()
                .filter_map(move |row| Some((own.block.id(row)?, At { block, row: row as u32 }, &*own.block)))
        });
        all.filter(move |(id, ..)| after.is_none_or(|after| *id > after))
    }

    /// Points in memory that have a payload, which is compact JSON, with their places, in no order.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = (&ExternalId, At, &[u8])> {
        self.behind(None).filter_map(|(id, at, block)| Some((id, at, &**block.payload(at.row as usize)?)))
    }

    /// Whether a point in memory matches.
    pub(crate) fn is_match(&self, at: At, matches: &mut Matches) -> bool {
        self.block(at).is_some_and(|own| matches.has(at, &own.block))
    }

    /// The point of a place.
    pub(crate) fn point_at(&self, at: At) -> Option<Point> {
        self.point(at)
    }

    /// Points in memory that match.
    pub(crate) fn count_matching(&self, matches: &mut Matches) -> u64 {
        self.behind(None).filter(|(_, at, block)| matches.has(*at, block)).count() as u64
    }

    /// What a sample of the points in memory tells.
    ///
    /// # Errors
    /// `Corrupt` for a payload that is none.
    pub(crate) fn asked_of_memory(&self, specs: &Specs, predicate: &Arc<Predicate>) -> Result<Asked> {
        let mut matches = self.matches(specs, predicate);
        let mut asked = Asked { open: self.behind(None).count() as u64, ..Asked::default() };
        for (_, at, block) in sample(asked.open, self.behind(None)) {
            asked.asked += 1;
            asked.matching += u64::from(matches.has(at, block));
        }
        matches.check()?;
        Ok(asked)
    }

    /// Ids of points in memory that match, and the numbers of their changes, in no order.
    pub(crate) fn ids_matching(&self, matches: &mut Matches) -> Vec<(ExternalId, u64)> {
        let found = self.behind(None).filter(|(_, at, block)| matches.has(*at, block));
        let found = found.filter_map(|(id, at, block)| Some((id.clone(), block.place(at.row as usize)?.seq)));
        found.collect()
    }

    /// Points in memory behind `after` that match, in the order of ids: one more than a page of at most so many
    /// points and about so many bytes has.
    pub(crate) fn points_matching(
        &self,
        matches: &mut Matches,
        after: Option<&ExternalId>,
        most: (usize, usize),
    ) -> Vec<Point> {
        let mut all: Vec<_> = self.behind(after).collect();
        all.sort_unstable_by(|one, two| one.0.cmp(two.0));
        let found = all.into_iter().filter(|(_, at, block)| matches.has(*at, block));
        self.page(found.map(|(_, at, _)| at), most)
    }

    /// The points of some rows: one more than a page of at most so many points and about so many bytes has.
    pub(super) fn page(&self, rows: impl Iterator<Item = At>, (limit, bytes): (usize, usize)) -> Vec<Point> {
        let (mut points, mut taken, mut is_full) = (Vec::new(), 0, false);
        for point in rows.filter_map(|at| self.point(at)) {
            taken += point.bytes();
            points.push(point);
            if is_full || points.len() > limit {
                break;
            }
            is_full = taken >= bytes;
        }
        points
    }
}

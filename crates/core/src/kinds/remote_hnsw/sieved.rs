//! The rows of a cluster that a query with a filter may return: by their numbers, or by the users' ids where others
//! change the index and rows have no numbers.

use super::State;
use super::view::View;
use crate::format::hnsw::SubHnsw;
use crate::route::visits;
use crate::sieve::{IdSieve, Sieve};
use crate::view::Base;

/// See the module.
#[derive(Clone, Copy)]
pub(super) enum Matches<'a> {
    /// Every row.
    All,
    /// The rows that a sieve has, and the number of the first member.
    Rows(&'a Sieve, u32),
    /// The ids that a sieve has.
    Ids(&'a IdSieve),
}

impl<'a> Matches<'a> {
    pub(super) fn of(base: &Base<'a>, view: &View<'a>, cluster: u32) -> Matches<'a> {
        match (view.id_sieve, base.sieve) {
            (Some(ids), _) => Matches::Ids(ids),
            // A member without a number is none of the rows.
            (None, Some(rows)) => {
                Matches::Rows(rows, view.first.get(cluster as usize).map_or(u32::MAX, |&first| first))
            }
            (None, None) => Matches::All,
        }
    }

    pub(super) fn is_all(&self) -> bool {
        matches!(self, Matches::All)
    }

    /// Whether a member may be returned, unless it is deleted.
    #[inline]
    pub(super) fn has(&self, own: &SubHnsw<'_>, member: u32) -> bool {
        match self {
            Matches::All => true,
            Matches::Rows(rows, first) => first.checked_add(member).is_some_and(|row| rows.has(row)),
            Matches::Ids(ids) => ids.has(own.external_id(member)),
        }
    }

    /// Whether a fresh record may be returned. It has no number.
    #[inline]
    pub(super) fn has_fresh(&self, id: u64) -> bool {
        match self {
            Matches::All => true,
            Matches::Rows(..) => false,
            Matches::Ids(ids) => ids.has(id),
        }
    }

    /// Members that may be returned. `is_dead` is for an index of which some are deleted.
    pub(super) fn count(&self, own: &SubHnsw<'_>, is_dead: Option<impl Fn(u32) -> bool>) -> u32 {
        match (self, is_dead) {
            (Matches::Rows(rows, first), None) => rows.count_in(*first..first.saturating_add(own.members())),
            (_, is_dead) => {
                let is_dead = |member| is_dead.as_ref().is_some_and(|is_dead| is_dead(member));
                let is_left = |&member: &u32| self.has(own, member) && !is_dead(member);
                (0..own.members()).filter(is_left).count() as u32
            }
        }
    }
}

/// One in so many clusters may be missing: what comes after the first reads is not gathered with those of other
/// queries.
const SLACK_PART: u32 = 8;

/// What the clusters of a query hold, in the order in which they were chosen, for a filter that tells it only when
/// they have been read.
impl State {
    /// Adds so many matches of so many rows, which have arrived.
    pub(super) fn see(&mut self, cluster: u32, (matches, rows): (u32, u32)) {
        self.seen.resize(self.clusters.len(), (0, 0));
        let at = self.clusters.iter().position(|&own| own == cluster);
        if let Some(seen) = at.and_then(|at| self.seen.get_mut(at)) {
            *seen = (seen.0.saturating_add(matches), seen.1.saturating_add(rows));
        }
    }

    /// How many clusters with a match a query lacks that would visit `nprobe` without a filter. It is the same number
    /// as where it is known before ([`crate::route::lists_to_visit`]), but for those that it lacks to find that number.
    pub(super) fn missing_matching(&self, (nprobe, far_tenths): (u32, u8), ids: &IdSieve) -> u32 {
        let lists = self.seen.iter().filter(|seen| seen.0 > 0).count() as u32;
        let enough = |wanted: u32| wanted - wanted / SLACK_PART;
        let wanted = match lists < enough(nprobe) {
            true => nprobe,
            false => visits((nprobe, far_tenths), (ids.matches(), ids.rows()), self.seen.iter().copied())
                .unwrap_or(u32::MAX),
        };
        if lists < enough(wanted) { wanted - lists } else { 0 }
    }
}

//! Trace of one `hybrid-ivf` query, for `explain` and for learning from traffic. Nothing here decides anything.

use alloc::vec::Vec;

use super::{Params, ReadKind, Scratch, State, View};
use crate::exact::Bounds;
use crate::route::to_centroid;
use crate::search::{Hit, Query, Tag};
use crate::view::Base;

/// A scanned list, or a part of one; or the local search of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedList {
    /// Cluster of the list.
    pub cluster: u32,
    /// Number of the list; `None` for a local search.
    pub list: Option<u32>,
    /// Members scored.
    pub members: u32,
    /// Members that no bound pruned.
    pub kept: u32,
    /// Whether the estimate of one was among the best so far.
    pub fruitful: bool,
    /// Whether its codes were resident.
    pub in_ram: bool,
}

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// List codes, with records where these follow: the first list, and how many.
    Lists(u32, u32),
    /// The vectors of this many candidates.
    Candidates(u32),
    /// All members in a row: the first, and how many.
    Run(u32, u32),
    /// Adjacency lists of members of a cluster.
    Edges(u32),
}

/// A cluster in the ranking of the navigation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedCluster {
    /// The cluster.
    pub cluster: u32,
    /// Members that the navigation found in it; with [`super::Order::Evidence`] at most one counts.
    pub sample_hits: u32,
    /// Rank of the cluster, on the scale of codes: squared l2, or minus the inner product.
    pub distance: f32,
}

impl Scratch {
    /// Keeps a trace of scanned lists from now on.
    pub(crate) fn trace_lists(&mut self) {
        self.scanned = Some(Vec::new());
    }

    /// The lists scanned since then, oldest first.
    pub fn scanned(&self) -> &[ScannedList] {
        self.scanned.as_deref().unwrap_or(&[])
    }

    pub(super) fn trace_scanned(&mut self, scanned: impl FnOnce() -> ScannedList) {
        if let Some(all) = &mut self.scanned {
            all.push(scanned());
        }
    }

    /// Adds members that the local search of a cluster scored.
    pub(super) fn trace_local(&mut self, cluster: u32, members: u32, kept: u32, fruitful: bool) {
        let Some(all) = &mut self.scanned else { return };
        match all.iter_mut().rev().find(|s| s.cluster == cluster && s.list.is_none()) {
            Some(local) => {
                local.members += members;
                local.kept += kept;
                local.fruitful |= fruitful;
            }
            None => all.push(ScannedList { cluster, list: None, members, kept, fruitful, in_ram: true }),
        }
    }

    /// The clusters that the last navigation found, in the order of their visits.
    pub fn ranked(&self) -> impl Iterator<Item = RankedCluster> + '_ {
        self.ranking.iter().copied()
    }

    /// The distance of the prepared query to a centroid, on the scale of codes: squared l2 (under cosine between unit
    /// vectors), or minus the inner product.
    pub fn centroid_distance(&self, base: &Base<'_>, view: &View<'_>, cluster: u32) -> f32 {
        to_centroid(base.metric, &self.query.wide, view.centroid(cluster))
    }
}

/// Trace of a query so far.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    q: &'a Query,
    own: &'a State,
    params: &'a Params,
}

impl<'a> Trace<'a> {
    pub(crate) fn new(q: &'a Query, own: &'a State, params: &'a Params) -> Trace<'a> {
        Trace { q, own, params }
    }

    /// The clusters whose visits have begun, in their order.
    pub fn visited(&self) -> &'a [u32] {
        self.own.visited()
    }

    /// The clusters that may be visited, in the order of their visits.
    pub fn clusters(&self) -> &'a [u32] {
        &self.own.ranked
    }

    /// The weight of the fruitless clusters in a row.
    pub fn fruitless(&self) -> f32 {
        self.own.fruitless
    }

    /// Candidates that are neither pruned nor read.
    pub fn candidates(&self) -> usize {
        self.own.candidates.len()
    }

    /// The results so far, closest first.
    pub fn results(&self) -> &'a [Hit] {
        &self.q.top.hits
    }

    /// Members that were read one by one, or were in RAM, with their distances: the first thousand. `None` without
    /// bounds, where they are not kept.
    pub fn read_members(&self) -> Option<&'a [(u32, f32)]> {
        (self.params.bounds != Bounds::Off).then_some(&self.own.read)
    }

    /// Members that were read one by one, or were in RAM, with their distances: the first thousand.
    pub(crate) fn read(&self) -> &'a [(u32, f32)] {
        &self.own.read
    }

    /// The purpose of a pending read.
    pub fn purpose(&self, tag: Tag) -> Option<ReadPurpose> {
        Some(match ReadKind::of(&self.q.io.get(tag)?.read)? {
            ReadKind::Lists { first, count } => ReadPurpose::Lists(first, count),
            ReadKind::Run { first, count } => ReadPurpose::Run(first, count),
            ReadKind::Records { .. } => {
                ReadPurpose::Candidates(self.own.awaited.iter().filter(|(t, _)| *t == tag).count() as u32)
            }
            ReadKind::Edges { cluster } => ReadPurpose::Edges(cluster),
        })
    }
}

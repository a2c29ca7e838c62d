//! What a query among clusters has done, for those who look at one rather than run many. Nothing here decides anything.

use super::state::{QueryState, Scratch, Tag};
use super::{Bounds, Reading};
use crate::plan::{ClusterView, IndexView};

/// A list, or a part of one, that was looked through; or all that a walk through a cluster came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedList {
    /// Its cluster.
    pub cluster: u32,
    /// Its number; none of a walk, which is no list's.
    pub list: Option<u32>,
    /// Members looked at.
    pub members: u32,
    /// Of them, those that no bound discarded.
    pub kept: u32,
    /// Whether one of them was among the best so far.
    pub fruitful: bool,
    /// Whether nothing had to be read for it.
    pub in_ram: bool,
}

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The heads of lists, with their records where these follow: the first list, and how many.
    Lists(u32, u32),
    /// Members that survived: how many.
    Members(u32),
    /// A run of members, whatever they are: the first, and how many.
    Run(u32, u32),
    /// Edges of members of the graph of a cluster.
    Edges(u32),
    /// Anything else.
    Other,
}

/// A cluster that may be visited, and why in this place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The cluster.
    pub cluster: u32,
    /// Members found by the navigation that speak for it; with [`super::Order::Evidence`] at most one counts.
    pub votes: u32,
    /// How near it is taken to be, on the scale of codes: squared l2, or minus the inner product.
    pub distance: f32,
}

impl Scratch {
    /// From now on keeps what lists are looked through.
    pub fn watch_lists(&mut self) {
        self.scanned = Some(alloc::vec::Vec::new());
    }

    /// The lists looked through since then, oldest first.
    pub fn scanned(&self) -> &[ScannedList] {
        self.scanned.as_deref().unwrap_or(&[])
    }

    pub(crate) fn note_scanned(&mut self, scanned: impl FnOnce() -> ScannedList) {
        if let Some(all) = &mut self.scanned {
            all.push(scanned());
        }
    }

    /// Adds members that a walk through a cluster came by, whose codes lie in RAM.
    pub(crate) fn note_met(&mut self, cluster: u32, members: u32, kept: u32, fruitful: bool) {
        let Some(all) = &mut self.scanned else { return };
        match all.iter_mut().rev().find(|s| s.cluster == cluster && s.list.is_none()) {
            Some(walk) => {
                walk.members += members;
                walk.kept += kept;
                walk.fruitful |= fruitful;
            }
            None => all.push(ScannedList { cluster, list: None, members, kept, fruitful, in_ram: true }),
        }
    }

    /// The clusters that the last navigation found, in the order of their visits.
    pub fn ranked(&self) -> impl Iterator<Item = Ranked> + '_ {
        self.votes.iter().map(|&(cluster, votes, distance)| Ranked { cluster, votes, distance })
    }

    /// The distance of the prepared query to a centroid, on the scale of codes: squared l2 (under cosine between unit vectors), or minus the inner
    /// product.
    pub fn centroid_distance(&self, view: &IndexView<'_>, clusters: &ClusterView<'_>, cluster: u32) -> f32 {
        crate::route::to_centroid(view.metric, &self.wide, clusters.centroid(cluster))
    }
}

impl QueryState {
    /// The clusters whose visits have begun, in their order.
    pub fn visited(&self) -> &[u32] {
        &self.probing.clusters[..(self.probing.begun as usize).min(self.probing.clusters.len())]
    }

    /// The clusters that may be visited, in the order of their visits.
    pub fn clusters(&self) -> &[u32] {
        &self.probing.clusters
    }

    /// Clusters in a row that brought nothing, by what each counts.
    pub fn fruitless(&self) -> f32 {
        self.probing.fruitless
    }

    /// Members that may be among the best and have not been read.
    pub fn survivors(&self) -> usize {
        self.probing.survivors.len()
    }

    /// Members that were read one by one, or lay in RAM, with their distances; without bounds, and beyond the first thousand, nobody keeps them.
    pub fn read_members(&self) -> Option<&[(u32, f32)]> {
        (self.params.probe.bounds != Bounds::Off).then_some(&self.probing.read)
    }

    /// What a read that is under way is for.
    pub fn purpose(&self, tag: Tag) -> Purpose {
        let reading = self.outstanding.iter().find(|o| o.tag == tag).map(|o| o.reading);
        match reading {
            Some(Reading::Lists(first, count)) => Purpose::Lists(first, count),
            Some(Reading::Run(first, count)) => Purpose::Run(first, count),
            Some(Reading::Records) => {
                Purpose::Members(self.probing.awaited.iter().filter(|(t, _)| *t == tag).count() as u32)
            }
            Some(Reading::Edges) => Purpose::Edges(self.probing.walk.cluster),
            Some(Reading::Block) | None => Purpose::Other,
        }
    }
}

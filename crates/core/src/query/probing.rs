//! The part of a query's state that kinds with clusters have: which clusters are left, and which members may still be among the best.

use alloc::vec::Vec;

use super::{Beam, Tag};

/// Which bounds discard a member before it is read. None of them changes an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Bounds {
    /// None: every member of a cluster is read.
    Off = 0,
    /// Its distance to the centroid, and in a graph those to its neighbours (OrchANN §5.3).
    Centroid = 1,
    /// Its own code, with the radius of what the code lost.
    Code = 2,
    /// Both.
    #[default]
    Both = 3,
}

impl Bounds {
    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Bounds::Off => "off",
            Bounds::Centroid => "centroid",
            Bounds::Code => "code",
            Bounds::Both => "both",
        }
    }
}

/// Which clusters are visited first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// Those whose centroids are nearest, less what members found by the navigation say for them.
    #[default]
    Evidence = 0,
    /// Those with most members among the nearest that the navigation found (OrchANN §5.3).
    Votes = 1,
    /// Those whose centroids are nearest.
    Centroid = 2,
    /// Those that are expected to hold most members within what is wanted, by their numbers and how far they lie from their centroid.
    Expected = 3,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 4] = [Order::Evidence, Order::Votes, Order::Centroid, Order::Expected];

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Order> {
        Order::ALL.into_iter().find(|o| o.name() == name)
    }

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Order::Evidence => "evidence",
            Order::Votes => "votes",
            Order::Centroid => "centroid",
            Order::Expected => "expected",
        }
    }
}

/// How clusters are looked through; plain data, a part of [`super::Params`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Most clusters that are visited (M).
    pub clusters: u32,
    /// Members found by the navigation that speak for their clusters.
    pub votes: u32,
    /// Which clusters come first.
    pub order: Order,
    /// Stop after this share of the clusters, one after another, brought nothing (ρ); infinity turns the rule off.
    pub early_stop: f32,
    /// Whether a fruitless cluster counts by how little was to be expected of it, instead of one like any other.
    pub weighed: bool,
    /// Lists that are scanned of a cluster that is divided into lists; 0 for as many as its plan says.
    pub local_lists: u32,
    /// Length of the beam in a cluster that is a graph; k when that is more.
    pub local_list: u32,
    /// Which bounds are used.
    pub bounds: Bounds,
}

/// Members that speak for their clusters unless told otherwise.
const VOTES: u32 = 64;
/// Length of the beam in a graph unless told otherwise.
const LOCAL_LIST: u32 = 32;
/// Most clusters that a query can visit.
pub const MAX_PROBES: u32 = 65_536;

impl Probe {
    /// The defaults of everything else for so many clusters.
    pub fn new(clusters: u32) -> Probe {
        let clusters = clusters.clamp(1, MAX_PROBES);
        Probe {
            clusters,
            votes: VOTES,
            order: Order::Evidence,
            early_stop: f32::INFINITY,
            weighed: true,
            local_lists: 0,
            local_list: LOCAL_LIST,
            bounds: Bounds::Both,
        }
    }

    /// True when every number is within its limit.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_PROBES).contains(&self.clusters)
            && (1..=MAX_PROBES).contains(&self.votes)
            && (1..=super::MAX_SEARCH_LIST).contains(&self.local_list)
            && self.early_stop > 0.0
    }

    /// Fruitless clusters in a row that end the visits: ⌈ρM⌉ of M (OrchANN §5.3); ρM where they are weighed.
    pub fn patience(&self, clusters: usize) -> f32 {
        let share = self.early_stop * clusters as f32;
        if self.weighed || !share.is_finite() {
            return share;
        }
        // A ceiling without std; the product is small.
        (share as u32 + u32::from(share > share as u32 as f32)).max(1) as f32
    }
}

/// What a read will bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A block.
    #[default]
    Block,
    /// The heads of so many lists from this one on, with their records where these follow.
    Lists(u32, u32),
    /// Records that are waited for.
    Records,
    /// The records of a list from this member on, so many, whatever they are.
    Run(u32, u32),
    /// Edges of members of the graph that is walked.
    Edges,
}

/// A member that may be among the best, as far as its code tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Survivor {
    /// What its distance should be.
    pub(crate) estimate: f32,
    /// What it is at least.
    pub(crate) bound: f32,
    pub(crate) id: u32,
}

/// The exact distance of a survivor that was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: u32,
    pub(crate) distance: f32,
    pub(crate) external_id: u64,
}

/// Lists that wait for a read, of themselves or of lists of a better rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QueuedLists {
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// The read; `None` for lists in RAM.
    pub(crate) tag: Option<Tag>,
}

/// A cluster whose lists are being scanned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    pub(crate) cluster: u32,
    pub(crate) lists_left: u32,
    /// Whether its first list took effect.
    pub(crate) has_begun: bool,
    pub(crate) fruitful: bool,
    /// What it counts when it brings nothing.
    pub(crate) weight: f32,
}

/// A walk through the graph of a cluster; there is one at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Walk {
    pub(crate) is_on: bool,
    pub(crate) cluster: u32,
    /// Members by their numbers within the cluster, nearest first by their codes.
    pub(crate) beam: Beam,
    /// The smallest estimates of all walks of this query, as many as a beam is long.
    pub(crate) nearest: Smallest,
    members: u32,
    // A bit for each member that was met.
    met: Vec<u64>,
}

impl Walk {
    /// Begins in another cluster, keeping the memory.
    pub(crate) fn begin(&mut self, cluster: u32, members: u32, list: usize) {
        self.is_on = true;
        self.cluster = cluster;
        self.beam.reset(list);
        self.nearest.k = list;
        self.members = members;
        self.met.clear();
        self.met.resize(members.div_ceil(64) as usize, 0);
    }

    /// Remembers a member; whether it is new. `None` when there is no such member.
    pub(crate) fn meet(&mut self, number: u32) -> Option<bool> {
        let word = self.met.get_mut(number as usize / 64).filter(|_| number < self.members)?;
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        Some(is_new)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Probing {
    /// Clusters in the order of their visits, and how many have begun.
    pub(crate) clusters: Vec<u32>,
    pub(crate) begun: u32,
    /// Clusters in a row that brought nothing, by what each counts.
    pub(crate) fruitless: f32,
    /// Lists of clusters that have begun, the next one last.
    pub(crate) lists: Vec<u32>,
    /// In `barrier` mode: lists taken from `lists` that have no effect yet, by rank. The first one is being read.
    pub(crate) queue: Vec<QueuedLists>,
    pub(crate) visits: Vec<Visit>,
    pub(crate) walk: Walk,
    pub(crate) survivors: Vec<Survivor>,
    pub(crate) awaited: Vec<(Tag, Survivor)>,
    /// Survivors that were read and are no results yet, ascending by id.
    pub(crate) scored: Vec<Scored>,
    /// Members that were read one by one, with their distances: what is learnt from.
    pub(crate) read: Vec<(u32, f32)>,
    /// The k smallest estimates, and upper bounds, of different members.
    pub(crate) estimates: Smallest,
    pub(crate) ceilings: Smallest,
    /// Members that the navigation found, ascending.
    pub(crate) known: Vec<u32>,
}

impl Probing {
    /// Begins anew, keeping the memory.
    pub(crate) fn reset(&mut self, k: usize) {
        self.clusters.clear();
        self.begun = 0;
        self.fruitless = 0.0;
        self.lists.clear();
        self.queue.clear();
        self.visits.clear();
        self.walk.begin(0, 0, 0);
        self.walk.nearest.reset(0);
        self.walk.is_on = false;
        self.survivors.clear();
        self.awaited.clear();
        self.scored.clear();
        self.read.clear();
        self.known.clear();
        for smallest in [&mut self.estimates, &mut self.ceilings] {
            smallest.reset(k);
        }
    }

    /// All memory that it holds, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        4 * (self.clusters.capacity() + self.lists.capacity())
            + self.queue.capacity() * size_of::<QueuedLists>()
            + self.visits.capacity() * size_of::<Visit>()
            + self.walk.beam.memory_bytes()
            + 8 * self.walk.met.capacity()
            + 4 * self.walk.nearest.values.capacity()
            + self.survivors.capacity() * size_of::<Survivor>()
            + self.awaited.capacity() * size_of::<(Tag, Survivor)>()
            + self.scored.capacity() * size_of::<Scored>()
            + self.read.capacity() * size_of::<(u32, f32)>()
            + 4 * (self.estimates.values.capacity() + self.ceilings.values.capacity() + self.known.capacity())
    }
}

/// The k smallest of many numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Smallest {
    k: usize,
    // Ascending.
    values: Vec<f32>,
}

impl Smallest {
    pub(crate) fn reset(&mut self, k: usize) {
        self.k = k;
        self.values.clear();
    }

    /// Takes a number; whether it is among the smallest so far.
    pub(crate) fn offer(&mut self, value: f32) -> bool {
        let at = if value < self.kth() {
            self.values.partition_point(|&v| v <= value)
        } else {
            return false;
        };
        if self.values.len() == self.k {
            self.values.pop();
        }
        self.values.insert(at, value);
        true
    }

    /// The k-th smallest; infinity as long as there are fewer.
    pub(crate) fn kth(&self) -> f32 {
        if self.k > 0 && self.values.len() == self.k { self.values[self.k - 1] } else { f32::INFINITY }
    }
}

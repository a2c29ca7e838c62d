//! The state of a `hybrid-ivf` query: which clusters are left, and which members may still be among the best.

use alloc::vec::Vec;

use super::Batch;
use crate::format::directory::Directory;
use crate::search::{Beam, IndexSize, KSmallest, Read, Tag};

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadKind {
    /// The list codes of `count` lists from `first` on, with their records where these follow.
    Lists { first: u32, count: u32 },
    /// Records of candidates, from that of `first` on.
    Records { first: u32 },
    /// The records of `count` members of one list from `first` on.
    Run { first: u32, count: u32 },
    /// A page with adjacency lists of members of `cluster`.
    Edges { cluster: u32 },
}

impl ReadKind {
    /// The list whose place decides where it is read, and the note, of a read of this purpose.
    pub(crate) fn to_read(self, directory: &Directory) -> (u32, u64) {
        let note = |kind: u64, count: u32, first: u32| kind | u64::from(count) << 8 | u64::from(first) << 32;
        match self {
            ReadKind::Lists { first, count } => (first, note(0, count, first)),
            ReadKind::Records { first } => (directory.list_of(first), note(1, 0, first)),
            ReadKind::Run { first, count } => (directory.list_of(first), note(2, count, first)),
            ReadKind::Edges { cluster } => (directory.lists_of(cluster).start, note(3, 0, cluster)),
        }
    }

    /// The inverse of [`ReadKind::to_read`]; `None` for a note that it does not make.
    pub(crate) fn of(read: &Read) -> Option<ReadKind> {
        let (first, count) = ((read.note >> 32) as u32, (read.note >> 8) as u32 & COUNT_MAX);
        match read.note & 0xff {
            0 => Some(ReadKind::Lists { first, count }),
            1 => Some(ReadKind::Records { first }),
            2 => Some(ReadKind::Run { first, count }),
            3 => Some(ReadKind::Edges { cluster: first }),
            _ => None,
        }
    }

    /// Whether its number of lists or members can be noted.
    pub(crate) fn is_short(self) -> bool {
        match self {
            ReadKind::Lists { count, .. } | ReadKind::Run { count, .. } => count <= COUNT_MAX,
            ReadKind::Records { .. } | ReadKind::Edges { .. } => true,
        }
    }
}

/// Most lists or members of one read: the note has 24 bits for them.
const COUNT_MAX: u32 = 0xff_ffff;

/// A member that no bound has pruned and whose vector was not read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unread {
    /// The estimate of its distance.
    pub(crate) estimate: f32,
    /// A lower bound of its distance.
    pub(crate) lower: f32,
    pub(crate) id: u32,
}

/// The exact distance of a candidate.
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
    /// The read; `None` for resident lists.
    pub(crate) tag: Option<Tag>,
}

/// A cluster whose lists were asked for or are being scanned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    pub(crate) cluster: u32,
    pub(crate) lists_left: u32,
    /// Whether its first list took effect.
    pub(crate) has_begun: bool,
    pub(crate) fruitful: bool,
    /// Weight of the cluster when it is fruitless.
    pub(crate) weight: f32,
}

/// List codes of a cluster that were read for a local search, one list after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LocalCodes {
    pub(crate) bytes: Vec<u8>,
    /// Start of the codes of each list.
    pub(crate) starts: Vec<u32>,
    /// Lists that have not been read yet.
    pub(crate) lists_left: u32,
}

impl LocalCodes {
    /// Forgets all, keeping the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.lists_left = 0;
    }
}

/// The search of a cluster that is a graph; there is one at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LocalSearch {
    pub(crate) is_on: bool,
    pub(crate) cluster: u32,
    /// Members by their numbers within the cluster, nearest first by code.
    pub(crate) beam: Beam,
    /// The smallest estimates of all local searches of this query, as many as a beam is long.
    pub(crate) nearest: KSmallest,
    /// Codes of the cluster, where they are not resident.
    pub(crate) codes: LocalCodes,
    pub(crate) members: u32,
    // A bit for each member that was visited.
    pub(crate) visited: Vec<u64>,
}

impl LocalSearch {
    /// Begins in another cluster, keeping the memory.
    pub(crate) fn begin(&mut self, cluster: u32, members: u32, list: usize) {
        self.is_on = true;
        self.cluster = cluster;
        self.beam.reset(list);
        self.nearest.k = list;
        self.codes.clear();
        self.members = members;
        self.visited.clear();
        self.visited.resize(members.div_ceil(64) as usize, 0);
    }

    /// Marks a member as visited. Returns whether it is new; `None` when there is no such member.
    pub(crate) fn visit(&mut self, number: u32) -> Option<bool> {
        let word = self.visited.get_mut(number as usize / 64).filter(|_| number < self.members)?;
        let bit = 1 << (number % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        Some(is_new)
    }
}

/// Clusters that are left, and members that may still be among the best.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Clusters in the order of their visits.
    pub(crate) ranked: Vec<u32>,
    /// The number of visits that have begun.
    pub(crate) begun: u32,
    /// The weight of the fruitless clusters in a row.
    pub(crate) fruitless: f32,
    /// Lists of clusters whose visits have begun, the next one last.
    pub(crate) lists: Vec<u32>,
    /// In `barrier` mode: lists taken from `lists` that have no effect yet, by rank. The first one is being read.
    pub(crate) queue: Vec<QueuedLists>,
    pub(crate) visits: Vec<Visit>,
    pub(crate) local: LocalSearch,
    /// Members not pruned yet and not read.
    pub(crate) candidates: Vec<Unread>,
    /// In `barrier` mode: candidates that become results together, once those of them that are being read have come.
    pub(crate) round: Vec<u32>,
    /// Candidates whose records are being read.
    pub(crate) awaited: Vec<(Tag, u32)>,
    /// Candidates whose distances are known and that are no results yet, ascending by id.
    pub(crate) scored: Vec<Scored>,
    /// Members that were read one by one, with their distances: what is learned from.
    pub(crate) read: Vec<(u32, f32)>,
    /// Members that were among the results when they were scored. Some may not be any more.
    pub(crate) results: Vec<Scored>,
    /// The k smallest estimates of different members.
    pub(crate) estimates: KSmallest,
    /// The k smallest upper bounds of different members.
    pub(crate) upper_bounds: KSmallest,
    /// Members that the navigation found, ascending.
    pub(crate) navigated: Vec<u32>,
    /// Lists that are scored together, here and on other servers; or the job of another query.
    pub(crate) batch: Batch,
    /// Whether a read was lost that another server may make; never travels.
    pub(crate) is_broken: bool,
}

impl State {
    /// Empties it for another query, keeping the memory.
    pub(crate) fn reset(&mut self, k: u32) {
        self.ranked.clear();
        self.begun = 0;
        self.fruitless = 0.0;
        self.lists.clear();
        self.queue.clear();
        self.visits.clear();
        self.local.begin(0, 0, 0);
        self.local.nearest.reset(0);
        self.local.is_on = false;
        self.candidates.clear();
        self.round.clear();
        self.awaited.clear();
        self.scored.clear();
        self.read.clear();
        self.results.clear();
        self.navigated.clear();
        self.batch.reset(k);
        self.is_broken = false;
        self.estimates.reset(k as usize);
        self.upper_bounds.reset(k as usize);
    }

    /// Whether the state can go on over an index of this size: no read is awaited, no local search has begun, and all
    /// that it names exists. A local search without its reads would wait for ever.
    pub(crate) fn fits(&self, size: &IndexSize) -> bool {
        let mut ids = self
            .candidates
            .iter()
            .map(|candidate| candidate.id)
            .chain(self.scored.iter().chain(&self.results).map(|scored| scored.id))
            .chain(self.read.iter().map(|read| read.0))
            .chain(self.navigated.iter().copied());
        let mut clusters = self.ranked.iter().copied().chain(self.visits.iter().map(|visit| visit.cluster));
        self.batch.fits(size)
            && self.queue.is_empty()
            && self.round.is_empty()
            && self.awaited.is_empty()
            && !self.local.is_on
            && self.local.codes.lists_left == 0
            && self.lists.iter().all(|&list| list < size.units)
            && clusters.all(|cluster| cluster < size.clusters)
            && ids.all(|id| id < size.nodes)
    }

    /// Memory beside the struct itself, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        4 * (self.ranked.capacity() + self.lists.capacity() + self.navigated.capacity())
            + self.queue.capacity() * size_of::<QueuedLists>()
            + (self.scored.capacity() + self.results.capacity()) * size_of::<Scored>()
            + self.visits.capacity() * size_of::<Visit>()
            + self.local.beam.memory_bytes()
            + 8 * self.local.visited.capacity()
            + self.local.codes.bytes.capacity()
            + 4 * self.local.codes.starts.capacity()
            + 4 * self.local.nearest.values.capacity()
            + self.candidates.capacity() * size_of::<Unread>()
            + self.awaited.capacity() * size_of::<(Tag, u32)>()
            + 4 * self.round.capacity()
            + self.read.capacity() * size_of::<(u32, f32)>()
            + self.batch.memory_bytes()
            + 4 * (self.estimates.values.capacity() + self.upper_bounds.values.capacity())
    }

    /// The clusters whose visits have begun, in their order.
    pub(crate) fn visited(&self) -> &[u32] {
        &self.ranked[..(self.begun as usize).min(self.ranked.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: IndexSize = IndexSize { nodes: 100, units: 20, clusters: 10 };

    #[test]
    fn a_state_fits_where_all_that_it_names_exists_and_nothing_is_awaited() {
        let mut good = State::default();
        good.reset(10);
        good.ranked.extend([9, 0]);
        good.lists.extend([19, 3]);
        good.navigated.push(99);
        good.results.push(Scored { id: 99, distance: 1.0, external_id: 7 });
        assert!(good.fits(&SIZE));
        let changes: [fn(&mut State); 12] = [
            |s| s.ranked.push(10),
            |s| s.lists.push(20),
            |s| s.navigated.push(100),
            |s| s.candidates.push(Unread { estimate: 0.0, lower: 0.0, id: 100 }),
            |s| s.results.push(Scored { id: 100, distance: 1.0, external_id: 7 }),
            |s| s.scored.push(Scored { id: 100, distance: 1.0, external_id: 7 }),
            |s| s.read.push((100, 1.0)),
            |s| s.round.push(1),
            |s| s.awaited.push((Tag(1), 1)),
            |s| s.queue.push(QueuedLists { first: 1, count: 1, tag: None }),
            |s| s.local.is_on = true,
            |s| s.local.codes.lists_left = 4,
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut state = good.clone();
            change(&mut state);
            assert!(!state.fits(&SIZE), "change {i}");
        }
    }

    #[test]
    fn a_forwarded_job_has_scores_of_lists_that_it_was_asked_for() {
        let bounds = crate::exact::DistanceBounds { estimate: 1.0, lower: 0.0, upper: 2.0 };
        let entry = |id| crate::kinds::hybrid_ivf::batch::Entry { id, bounds };
        let mut good = State::default();
        good.reset(10);
        good.batch.job = crate::kinds::hybrid_ivf::Job::Lists;
        good.batch.lists.extend([3, 19]);
        good.batch.entries.push(entry(99));
        good.batch.scored.push((19, 1));
        assert!(good.fits(&SIZE));
        let changes: [fn(&mut State); 5] = [
            |s| s.batch.scored.push((4, 1)),
            |s| s.batch.scored.push((19, 1)),
            |s| s.batch.asked.push((Tag(1), 3)),
            |s| s.batch.job = crate::kinds::hybrid_ivf::Job::None,
            |s| s.batch.lists.extend([3; 64]),
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut state = good.clone();
            change(&mut state);
            assert!(!state.fits(&SIZE), "change {i}");
        }
        good.batch.entries[0] = entry(100);
        assert!(!good.fits(&SIZE), "no such member");
    }
}

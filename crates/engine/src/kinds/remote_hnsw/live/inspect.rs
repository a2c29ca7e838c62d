//! Content of memory nodes, for `info`, and whether it is sound, for `verify`.

use std::collections::HashSet;

use serde::Serialize;
use stratann_core::format::fresh::{FreshRecord, GIVEN_UP, KILLED, seed};
use stratann_core::format::hnsw::{HnswName, SubHnsw, seed as hnsw_seed};
use stratann_core::format::region::{
    Address, CONTROL_BYTES, DESCRIPTOR_BYTES, GROUP_ALIGN, GROUP_WORDS_BYTES, GroupWords, SUPERBLOCK_BYTES,
    Superblock, has_bit,
};
use stratann_core::remote_protocol::{Fold, Freed, GroupState, Places};
use stratann_storage::{Progress, Result};

use super::super::open::RemoteIndex;
use super::super::verify::check_cluster;
use super::{Counted, LiveRegion, Session};
use crate::base::Base;
use crate::findings::{Finding, Report};

/// Number of checks of a group that is replaced meanwhile.
const TRIES_MAX: u32 = 8;

/// One memory node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeFacts {
    /// Number of the node.
    pub node: u8,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Bytes that tables and groups have. Those of replaced groups that are free once nobody reads them are left out.
    pub used_bytes: u64,
    /// The epoch of its region, in hexadecimal digits.
    pub epoch: String,
}

/// Content of memory nodes besides what was loaded.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LiveFacts {
    /// The nodes that answer, by number.
    pub nodes: Vec<NodeFacts>,
    /// Groups of two clusters each.
    pub groups: u32,
    /// Groups that were rebuilt since they were loaded.
    pub rebuilt_groups: u32,
    /// Slots for fresh records that are reserved.
    pub fresh_reserved: u64,
    /// Slots for fresh records in all groups.
    pub fresh_slots: u64,
    /// Vectors that are not deleted.
    pub rows: u64,
    /// Ids that are deleted, and not yet marked in their groups.
    pub tombstones: u64,
    /// Tombstones that there is room for.
    pub tombstones_max: u64,
    /// The clock: changes since the index was loaded.
    pub clock: u64,
}

/// Slots for fresh records, and what was found in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FreshFacts {
    /// Records.
    pub published: u64,
    /// Slots that were reserved and have no record, yet or ever.
    pub holes: u64,
    /// Slots that a rebuilder took, or their writer gave up.
    pub killed: u64,
}

/// Report of a verification of memory nodes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// Clusters, vectors, edges, and what is wrong; the names of files are those of nodes.
    #[serde(flatten)]
    pub report: Report,
    /// Content of the nodes.
    pub live: LiveFacts,
    /// The fresh records.
    pub fresh: FreshFacts,
}

impl LiveRegion {
    /// Content of the memory nodes now.
    ///
    /// # Errors
    /// Nodes that do not answer, or are damaged.
    pub(crate) fn facts(&self) -> Result<LiveFacts> {
        let rows = self.rows()?;
        self.with_session(|session| {
            session.begin_batch(self)?;
            Ok(LiveFacts { rows, ..session.facts(self)? })
        })
    }

    /// Vectors that are not deleted. Where nothing has changed since the last call they are not counted again.
    ///
    /// # Errors
    /// As [`LiveRegion::facts`].
    pub(crate) fn rows(&self) -> Result<u64> {
        self.with_session(|session| {
            session.begin_batch(self)?;
            let (clock, groups) = (session.seen.control.tombstones, session.seen.groups.clone());
            let counted = || self.counted.lock().unwrap_or_else(|e| e.into_inner());
            let is_same = |own: &&Counted| own.clock == clock && own.groups == groups;
            if let Some(own) = counted().as_ref().filter(is_same) {
                return Ok(own.rows);
            }
            let mut fold = Fold::count(&session.seen);
            let found = session.nodes.run(|answers| fold.step(&self.places, &self.layout, answers));
            let found = found.map_err(|fault| self.error(fault, &session.nodes))?;
            let Freed::Counted { rows, is_busy } = found else { return Ok(0) };
            *counted() = (!is_busy).then_some(Counted { clock, groups, rows });
            Ok(rows)
        })
    }
}

impl Session {
    fn facts(&mut self, live: &LiveRegion) -> Result<LiveFacts> {
        let places = &live.places;
        let waiting = self.waiting_bytes(places)?;
        let mut nodes = Vec::new();
        for facts in self.nodes.facts() {
            let number = facts.node.0;
            let Some(own) = places.nodes.get(usize::from(number)) else { continue };
            let bits = self.nodes.read(number, own.end, own.page_bits_bytes())?;
            let pages: u64 = bits.iter().map(|byte| u64::from(byte.count_ones())).sum();
            nodes.push(NodeFacts {
                node: number,
                region_bytes: facts.region_bytes,
                used_bytes: (pages * GROUP_ALIGN).saturating_sub(waiting[usize::from(number)]),
                epoch: format!("{:016x}", facts.epoch),
            });
        }
        let groups = &self.seen.groups;
        let capacity = |group: &GroupState| u64::from(group.descriptor.capacity);
        let used = |group: &GroupState| {
            group.reservations.disjoint(group.descriptor.capacity).into_iter().map(u64::from).sum::<u64>()
        };
        Ok(LiveFacts {
            nodes,
            groups: groups.len() as u32,
            rebuilt_groups: groups.iter().filter(|group| group.descriptor.version > 0).count() as u32,
            fresh_reserved: groups.iter().map(used).sum(),
            fresh_slots: groups.iter().map(capacity).sum(),
            rows: 0,
            tombstones: self.seen.tombstones.len() as u64,
            tombstones_max: places.nodes.first().map_or(0, |own| own.tombstones),
            clock: self.seen.control.tombstones,
        })
    }
}

impl Session {
    /// Bytes of each node, by number, that replaced groups had and that are free once nobody reads them.
    fn waiting_bytes(&mut self, places: &Places) -> Result<[u64; 256]> {
        let first = places.nodes.first().copied().unwrap_or_default();
        let bytes = first.groups * GROUP_WORDS_BYTES;
        let words = self.nodes.read(0, first.control_at + CONTROL_BYTES, bytes)?;
        let mut waiting = [0; 256];
        for (group, words) in self.seen.groups.iter().zip(words.chunks_exact(GROUP_WORDS_BYTES as usize)) {
            let spans = GroupWords::decode(words).unwrap_or_default().free_spans;
            let node = usize::from(group.descriptor.at.node());
            waiting[node] += spans.iter().map(|own| own.space().bytes).sum::<u64>();
        }
        Ok(waiting)
    }
}

/// Checks all that memory nodes hold: superblocks, descriptors, every sub-HNSW and fresh record.
///
/// # Errors
/// Nodes that do not answer; an interruption. Damage is no error but a finding.
pub(crate) fn check(
    base: &Base,
    own: &RemoteIndex,
    live: &LiveRegion,
    progress: &dyn Progress,
) -> Result<MemoryReport> {
    live.with_session(|session| check_all(base, own, (live, session), progress))
}

fn check_all(
    base: &Base,
    own: &RemoteIndex,
    (live, session): (&LiveRegion, &mut Session),
    progress: &dyn Progress,
) -> Result<MemoryReport> {
    session.begin_batch(live)?;
    let facts = session.facts(live)?;
    let (report, fresh) = (Report::default(), FreshFacts::default());
    let report = MemoryReport { report, live: facts, fresh };
    let mut check = Check { base, own, live, session, ids: HashSet::new(), report, edges: 0 };
    check.superblocks()?;
    let first = live.places.nodes.first().copied().unwrap_or_default();
    // They were checked when the index was opened.
    check.report.report.bytes += first.meta_bytes + first.manifest_bytes;
    let groups = check.session.seen.groups.len() as u32;
    progress.stage("verifying memory nodes", groups.into(), "groups");
    for group in 0..groups {
        progress.check_interrupted()?;
        check.group(group)?;
        progress.advance(1);
    }
    let Check { mut report, edges, .. } = check;
    report.report.edges = edges;
    report.report.lists = Some(own.facts.clusters());
    Ok(report)
}

struct Check<'a> {
    base: &'a Base,
    own: &'a RemoteIndex,
    live: &'a LiveRegion,
    session: &'a mut Session,
    /// Ids that were found.
    ids: HashSet<u64>,
    report: MemoryReport,
    edges: u64,
}

/// Counts of one version of a group.
#[derive(Default)]
struct Checked {
    findings: Vec<Finding>,
    ids: Vec<u64>,
    fresh: FreshFacts,
    nodes: u64,
    edges: u64,
    bytes: u64,
}

impl Checked {
    fn found(&mut self, node: u8, offset: u64, list: Option<u32>, what: impl Into<String>) {
        let file = format!("memory node {node}");
        self.findings.push(Finding { file, block: None, list, offset: Some(offset), what: what.into() });
    }
}

impl Check<'_> {
    fn found(&mut self, node: u8, offset: u64, what: impl Into<String>) {
        let mut checked = Checked::default();
        checked.found(node, offset, None, what);
        checked.findings.into_iter().for_each(|finding| self.report.report.found(finding));
    }

    fn read(&mut self, node: u8, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        Ok(self.session.nodes.read(node, offset, bytes)?)
    }

    /// Checks both copies of the superblock of each node. The second one is zeros until it is written.
    fn superblocks(&mut self) -> Result<()> {
        for facts in self.session.nodes.facts() {
            let node = facts.node.0;
            let bytes = self.read(node, 0, 2 * SUPERBLOCK_BYTES)?;
            for (offset, copy) in
                (0..).step_by(SUPERBLOCK_BYTES as usize).zip(bytes.chunks(SUPERBLOCK_BYTES as usize))
            {
                let is_empty = copy.iter().all(|&byte| byte == 0);
                if !is_empty && Superblock::decode(copy).is_none() {
                    self.found(node, offset, "the superblock is damaged");
                }
            }
        }
        Ok(())
    }

    /// Checks a group as it is now. One that was replaced meanwhile is checked again.
    fn group(&mut self, group: u32) -> Result<()> {
        for last in (0..TRIES_MAX).map(|try_| try_ + 1 == TRIES_MAX) {
            let state = self.session.seen.groups[group as usize];
            let checked = self.checked(group, &state)?;
            if !checked.findings.is_empty() && !last {
                self.session.begin_batch(self.live)?;
                if self.session.seen.groups[group as usize].version != state.version {
                    // Vectors may have moved between groups.
                    self.ids.clear();
                    continue;
                }
            }
            self.take(state.descriptor.at, checked);
            break;
        }
        Ok(())
    }

    fn take(&mut self, at: Address, mut checked: Checked) {
        let twice: Vec<u64> = checked.ids.iter().copied().filter(|&id| !self.ids.insert(id)).collect();
        for id in twice {
            checked.found(at.node(), at.offset(), None, format!("id {id} is that of two vectors"));
        }
        let MemoryReport { report, fresh, .. } = &mut self.report;
        checked.findings.into_iter().for_each(|finding| report.found(finding));
        fresh.published += checked.fresh.published;
        fresh.holes += checked.fresh.holes;
        fresh.killed += checked.fresh.killed;
        report.nodes += checked.nodes;
        report.bytes += checked.bytes;
        self.edges += checked.edges;
    }

    fn checked(&mut self, group: u32, state: &GroupState) -> Result<Checked> {
        // The headers have checked the descriptor.
        let mut checked = Checked { bytes: DESCRIPTOR_BYTES, ..Checked::default() };
        for side in 0..2 {
            let cluster = 2 * group + side as u32;
            // One without members has no bytes.
            if cluster < self.own.facts.clusters() && state.descriptor.clusters[side].members > 0 {
                self.sub_hnsw((group, side), state, &mut checked)?;
            }
        }
        self.fresh(group, state, &mut checked)?;
        Ok(checked)
    }

    fn sub_hnsw(
        &mut self,
        (group, side): (u32, usize),
        state: &GroupState,
        checked: &mut Checked,
    ) -> Result<()> {
        let first = self.live.places.nodes.first().copied().unwrap_or_default();
        let (descriptor, node) = (&state.descriptor, state.descriptor.at.node());
        let span = descriptor.cluster(side, first.record_bytes);
        let cluster = 2 * group + side as u32;
        let bytes = self.read(node, span.offset, span.bytes)?;
        checked.bytes += span.bytes;
        let seed = hnsw_seed(first.build, group, descriptor.version, side);
        let name = HnswName { cluster, version: descriptor.version, seed };
        let found = SubHnsw::open(&self.own.layout, &bytes)
            .filter(|_| SubHnsw::verify(&self.own.layout, &name, &bytes));
        let Some(found) = found else {
            checked.found(
                node,
                span.offset,
                Some(cluster),
                "the sub-HNSW is damaged: its checksum does not match",
            );
            return Ok(());
        };
        let (seen, clock) = (&self.session.seen, descriptor.clock);
        let (marks, first_mark) = (seen.marks_of(group), descriptor.member_mark(side));
        let is_marked = |member: u32| has_bit(marks, first_mark + u64::from(member));
        if let Some(what) = check_cluster(self.base, &found, &mut HashSet::new(), &mut checked.edges) {
            checked.found(node, span.offset, Some(cluster), what);
        }
        checked.nodes += u64::from(found.members());
        let live = (0..found.members()).filter(|&member| !is_marked(member));
        let ids = live.map(|member| found.external_id(member));
        checked.ids.extend(ids.filter(|&id| !seen.is_deleted(id, clock)));
        Ok(())
    }

    /// The slots of both clusters, each once.
    fn fresh(&mut self, group: u32, state: &GroupState, checked: &mut Checked) -> Result<()> {
        let first = self.live.places.nodes.first().copied().unwrap_or_default();
        let (GroupState { descriptor, reservations, .. }, bytes) = (state, first.record_bytes);
        let used =
            [0, 1].map(|side| descriptor.fresh(side, reservations.used(side, descriptor.capacity), bytes));
        for (side, count) in reservations.disjoint(descriptor.capacity).into_iter().enumerate() {
            let span = descriptor.fresh(side, count, bytes);
            let read = self.read(descriptor.at.node(), span.offset, span.bytes)?;
            checked.bytes += span.bytes;
            let slots = read.chunks_exact(bytes as usize).zip(descriptor.slot_mark(side, count)..);
            for (offset, (slot, mark)) in (span.offset..).step_by(bytes as usize).zip(slots) {
                // A slot that both sides have reserved holds a record of either.
                let may_hold = used.map(|used| (used.offset..used.offset + used.bytes).contains(&offset));
                self.slot((group, state), (offset, mark, slot), may_hold, checked);
            }
        }
        Ok(())
    }

    fn slot(
        &self,
        (group, state): (u32, &GroupState),
        (offset, mark, slot): (u64, u64, &[u8]),
        may_hold: [bool; 2],
        checked: &mut Checked,
    ) {
        let places = &self.live.places;
        let build = places.nodes.first().map_or(0, |first| first.build);
        let seed = seed(build, group, state.descriptor.version);
        let (node, cluster) = (state.descriptor.at.node(), 2 * group + u32::from(!may_hold[0]));
        let word = slot.first_chunk().copied().map_or(0, u64::from_le_bytes);
        match FreshRecord::decode(seed, places.vector_bytes, slot) {
            Some(record) if record.cluster / 2 == group && may_hold[record.cluster as usize % 2] => {
                let is_marked = has_bit(self.session.seen.marks_of(group), mark);
                if !is_marked && !self.session.seen.is_deleted(record.id, record.clock) {
                    checked.ids.push(record.id);
                }
                checked.fresh.published += 1;
                checked.nodes += 1;
            }
            Some(_) => checked.found(node, offset, Some(cluster), "a fresh record is of another cluster"),
            None if [KILLED, GIVEN_UP].contains(&word) => checked.fresh.killed += 1,
            None if word == 0 => checked.fresh.holes += 1,
            None => checked.found(
                node,
                offset,
                Some(cluster),
                "a fresh record is damaged: its checksum does not match",
            ),
        }
    }
}

//! Part of a `hybrid-ivf` in RAM.

use alloc::sync::Arc;
use alloc::vec::Vec;

use stratann_kernel::coder::Coder;

use super::{FILE, ReadKind};
use crate::PAGE;
use crate::format::directory::Directory;
use crate::format::edges::{self, Edges};
use crate::format::inverted_list::{self, ListCodes, Record};
use crate::route::NavGraph;
use crate::search::{Extent, Read};

/// Part of a `hybrid-ivf` in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Places of the lists in the file.
    pub directory: &'a Directory,
    /// The layout of all lists.
    pub shape: inverted_list::ListLayout,
    /// How vectors are encoded.
    pub coder: &'a Coder,
    /// `clusters × dim` f16 as bytes.
    pub centroids: &'a [u8],
    /// Lists of each divided cluster that a visit scans.
    pub lists_planned: &'a [u32],
    /// The centroids of the lists of divided clusters.
    pub sublists: &'a SubLists,
    /// The navigation graph.
    pub nav: &'a NavGraph,
    /// Resident list codes.
    pub resident: Resident<'a>,
    /// Resident records of whole lists.
    pub resident_records: Resident<'a>,
    /// Hot members whose records are in RAM.
    pub pinned: Pinned<'a>,
    /// Most bytes of one read.
    pub read_max: u32,
    /// Most unused bytes between two parts of one read.
    pub gap_max: u32,
}

/// The centroids of the lists of divided clusters, each as a code of its residual to the cluster's centroid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubLists {
    /// First entry of each cluster in the tables below.
    pub first: Vec<u32>,
    /// ‖r̂‖² + 2⟨c, r̂⟩.
    pub terms: Vec<f32>,
    /// Codes, one after another.
    pub codes: Vec<u8>,
}

impl SubLists {
    /// Whether a cluster of so many lists has an entry for each.
    pub fn has_all(&self, cluster: u32, lists: usize) -> bool {
        let first = self.first.get(cluster as usize).map_or(usize::MAX, |&first| first as usize);
        first.checked_add(lists).is_some_and(|end| end <= self.terms.len())
    }
}

/// List codes, or records, in RAM: for each list `None` when it is on disk. Empty when all are on disk.
pub type Resident<'a> = &'a [Option<Arc<[u8]>>];

/// Records of hot members in RAM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pinned<'a> {
    /// The members, ascending.
    pub ids: &'a [u32],
    /// Records of the lists, in the same order.
    pub records: &'a [Arc<[u8]>],
}

impl<'a> Pinned<'a> {
    /// The record of a member.
    pub fn get(&self, id: u32) -> Option<&'a [u8]> {
        let at = self.ids.binary_search(&id).ok()?;
        self.records.get(at).map(|record| &record[..])
    }
}

impl<'a> View<'a> {
    /// Mean squared distance of a cluster's members to its centroid.
    pub(crate) fn spread(&self, cluster: u32) -> f32 {
        self.nav.terms.get(cluster as usize).copied().unwrap_or(0.0)
    }

    /// A centroid, `dim` f16 as bytes.
    pub fn centroid(&self, cluster: u32) -> &'a [u8] {
        let size = 2 * self.shape.dim;
        &self.centroids[cluster as usize * size..(cluster as usize + 1) * size]
    }

    /// The codes of a list, when they are resident.
    pub fn resident_codes(&self, list: u32) -> Option<&'a [u8]> {
        self.resident.get(list as usize)?.as_deref()
    }

    /// The record of a member that is in RAM.
    pub fn record_in_ram(&self, id: u32) -> Option<&'a [u8]> {
        if self.resident_records.is_empty() {
            return self.pinned.get(id);
        }
        let (list, size) = (self.directory.list_of(id) as usize, self.shape.record_bytes());
        match self.resident_records.get(list)? {
            None => self.pinned.get(id),
            Some(records) => {
                let at = (id - self.directory.ids[list]) as usize * size;
                records.get(at..at + size)
            }
        }
    }

    /// Whether the record of a member is resident with its whole list.
    pub(crate) fn is_resident(&self, id: u32) -> bool {
        let list = self.directory.list_of(id) as usize;
        self.resident_records.get(list).is_some_and(Option::is_some)
    }

    /// The end of what is read of a list: its codes, with the records where these follow.
    pub(crate) fn list_end(&self, list: u32) -> u64 {
        let members = self.directory.members(list) as usize;
        let at = self.directory.codes[list as usize] + self.shape.list_codes_bytes(members) as u64;
        if self.directory.is_whole(&self.shape, list) {
            at + (members * self.shape.record_bytes()) as u64
        } else {
            at
        }
    }
}

impl View<'_> {
    /// Whether these bytes are what a read must bring: the checksum, place and layout of every list, record or
    /// adjacency list in it.
    pub(super) fn check_read(&self, read: &Read, bytes: &[u8]) -> bool {
        let verified = match ReadKind::of(read) {
            _ if read.at.store != FILE => None,
            Some(ReadKind::Lists { first, count }) => self.verify_lists(first, count, read, bytes),
            Some(ReadKind::Records { first }) => self.verify_records(first, u32::MAX, read, bytes),
            Some(ReadKind::Run { first, count }) => self.verify_records(first, count, read, bytes),
            Some(ReadKind::Edges { cluster }) => self.verify_edges(cluster, read, bytes),
            None => None,
        };
        verified.is_some()
    }

    fn verify_lists(&self, first: u32, count: u32, read: &Read, bytes: &[u8]) -> Option<()> {
        let directory = self.directory;
        for list in first..first.checked_add(count)? {
            let at = directory.codes.get(list as usize)?.checked_sub(read.at.offset)? as usize;
            let members = directory.members(list);
            let end = at + self.shape.list_codes_bytes(members as usize);
            let codes = ListCodes::verify(&self.shape, list, bytes.get(at..end)?)?;
            let first_id = directory.ids[list as usize];
            if codes.first_id() != first_id || codes.count() != members as usize {
                return None;
            }
            if directory.is_whole(&self.shape, list) {
                self.verify_run(first_id, members, bytes.get(end..)?)?;
            }
        }
        Some(())
    }

    /// Checks the records from that of `first` on to the end of the read, or as many as `most`. Between those of two
    /// lists other bytes may lie, which nobody uses.
    fn verify_records(&self, first: u32, most: u32, read: &Read, bytes: &[u8]) -> Option<()> {
        let (directory, size) = (self.directory, self.shape.record_bytes());
        let mut left = most;
        let mut checked = 0;
        let first_list = directory.list_of(first);
        // Lists with their records behind their codes lie before all others: after the last of those comes the first
        // of these.
        for list in (first_list..directory.list_count()).chain(0..first_list) {
            let (own, end) = (directory.ids[list as usize], directory.ids[list as usize + 1]);
            let id = if list == first_list { own.max(first) } else { own };
            let at = directory.records[list as usize] + u64::from(id - own) * size as u64;
            // Lists whose records are elsewhere in the file are not part of the read.
            let at = at.checked_sub(read.at.offset).filter(|&at| at < bytes.len() as u64);
            let Some(at) = at.map(|at| at as usize).filter(|_| id < end) else { continue };
            let fits = (bytes.len() - at) / size;
            let count = (end - id).min(left).min(fits as u32);
            self.verify_run(id, count, &bytes[at..])?;
            checked = checked.max(at + count as usize * size);
            left -= count;
            if checked == bytes.len() || left == 0 {
                break;
            }
        }
        (checked == bytes.len()).then_some(())
    }

    /// Checks `count` records in a row.
    fn verify_run(&self, first: u32, count: u32, bytes: &[u8]) -> Option<()> {
        let size = self.shape.record_bytes();
        let records = bytes.get(..count as usize * size)?.chunks_exact(size);
        records.zip(first..).try_for_each(|(bytes, id)| Record::verify(&self.shape, id, bytes).map(|_| ()))
    }

    /// The read of the adjacency lists of a cluster in one page: those alone, so that equal reads have equal content
    /// for every cluster.
    pub(super) fn edges_extent(&self, cluster: u32, page: u32) -> Option<Extent> {
        let (from, count) = self.directory.edges_in_page(cluster, page)?;
        let skip = self.directory.edges_at(cluster, from).skip;
        let bytes = count * edges::edge_bytes(self.directory.degree as usize) as u32;
        Some(Extent { store: FILE, offset: u64::from(page) * PAGE as u64 + u64::from(skip), bytes })
    }

    /// Checks the adjacency lists of a cluster in one page.
    fn verify_edges(&self, cluster: u32, read: &Read, bytes: &[u8]) -> Option<()> {
        let directory = self.directory;
        if cluster >= directory.clusters() || !directory.has_edges(cluster) {
            return None;
        }
        let page = u32::try_from(read.at.offset / PAGE as u64).ok()?;
        if self.edges_extent(cluster, page)? != read.at {
            return None;
        }
        let (from, count) = directory.edges_in_page(cluster, page)?;
        let (degree, first) = (directory.degree as usize, directory.members_of(cluster).start + from);
        let (lists, seed) = (bytes.chunks_exact(edges::edge_bytes(degree)), self.shape.checksum_seed);
        lists
            .zip(first..first + count)
            .map(|(list, id)| Edges::verify(degree, seed, id, list).map(|_| ()))
            .collect()
    }
}

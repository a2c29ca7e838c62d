//! What an open `hybrid-ivf` keeps in RAM.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::format::directory::{Directory, LocalKind, Pages};
use stratann_core::format::inverted_list::{ListCodes, ListLayout, Record};
use stratann_core::plan::{ClusterView, Pinned, SubLists};
use stratann_core::route::NavGraph;
use stratann_core::{PAGE, format::block};
use stratann_kernel::codes::Codebook;

use crate::budget::Account;
use crate::kinds::hybrid_ivf::residency::Residency;
use crate::manifest::{ClusterFacts, Manifest, read_file};
use crate::tier::Buffer;
use crate::{Error, Result, files};

/// The plan and the curves of the manifest, and what is sorted to choose the lists that come into RAM.
pub(crate) const CHOICE_BYTES: u64 = 256 << 10;

/// See the module.
pub(crate) struct ClusterParts {
    pub(crate) shape: ListLayout,
    pub(crate) codebook: Codebook,
    pub(crate) directory: Directory,
    pub(crate) centroids: Vec<u8>,
    pub(crate) sublists: SubLists,
    pub(crate) nav: Arc<NavGraph>,
    facts: ClusterFacts,
    // Lists that a visit scans, for each cluster.
    lists_planned: Vec<u32>,
}

impl ClusterParts {
    /// Reads and checks the files in RAM.
    pub(crate) fn load(
        folder: &Path,
        manifest: &Manifest,
        block: &block::BlockLayout,
    ) -> Result<ClusterParts> {
        let facts = manifest.clusters.ok_or_else(|| {
            Error::corrupt(format!("{}: the manifest tells nothing of its clusters", folder.display()))
        })?;
        let read = |role: &str| -> Result<(PathBuf, Vec<u8>)> {
            let (name, entry) = files::find(manifest, role)?;
            Ok((folder.join(name), read_file(folder, name, entry)?))
        };
        let (path, bytes) = read(files::CODEBOOK)?;
        let codebook = files::decode_codebook(&bytes)
            .filter(|c| c.dim == manifest.dim && c.code_bytes() == facts.code_bytes)
            .ok_or_else(|| files::senseless(&path))?;
        let shape = list_layout(manifest, block, &facts);
        let (nodes, bytes_of_lists) =
            (manifest.rows as u32, u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64);
        let (path, bytes) = read(files::DIRECTORY)?;
        let directory = files::decode_directory(&bytes)
            .filter(|d| d.is_consistent(&shape, nodes, bytes_of_lists))
            .ok_or_else(|| files::senseless(&path))?;
        let clusters = directory.clusters();
        let (path, centroids) = read(files::CENTROIDS)?;
        if centroids.len() != clusters as usize * 2 * shape.dim {
            return Err(files::senseless(&path));
        }
        let (path, bytes) = read(files::SUBLISTS)?;
        let sublists = files::decode_sublists(&bytes)
            .filter(|s| {
                let is_divided = |c: u32| directory.kinds[c as usize] == LocalKind::Ivf;
                s.first.len() == clusters as usize
                    && s.codes.len() == s.terms.len() * shape.code_bytes
                    && (0..clusters).all(|c| !is_divided(c) || s.has_all(c, directory.lists_of(c).len()))
            })
            .ok_or_else(|| files::senseless(&path))?;
        let (path, bytes) = read(files::NAV)?;
        let nav = files::decode_nav(&bytes)
            .filter(|n| n.is_consistent(clusters, nodes, shape.code_bytes))
            .ok_or_else(|| files::senseless(&path))?;
        let lists_planned = match &manifest.plan {
            Some(plan) => {
                let model = plan.model(&shape, facts.read_max);
                let members = |c: u32| directory.members_of(c).len() as u64;
                (0..clusters).map(|c| model.lists_scanned(members(c)).ceil() as u32).collect()
            }
            None => Vec::new(),
        };
        Ok(ClusterParts {
            shape,
            codebook,
            directory,
            centroids,
            sublists,
            nav: Arc::new(nav),
            facts,
            lists_planned,
        })
    }

    /// What the queries see.
    pub(crate) fn view<'a>(&'a self, residency: &'a Residency) -> ClusterView<'a> {
        ClusterView {
            directory: &self.directory,
            shape: self.shape,
            codebook: &self.codebook,
            centroids: &self.centroids,
            lists_planned: &self.lists_planned,
            sublists: &self.sublists,
            nav: &self.nav,
            resident: residency.heads(),
            resident_records: residency.records(),
            pinned: Pinned::default(),
            read_max: self.facts.read_max,
            gap_max: self.facts.gap_max,
        }
    }

    /// Longest read, in bytes.
    pub(crate) fn read_max(&self) -> u32 {
        self.facts.read_max
    }

    /// A centroid, `dim` f16 as bytes.
    pub(crate) fn centroid(&self, cluster: u32) -> &[u8] {
        let size = 2 * self.shape.dim;
        &self.centroids[cluster as usize * size..(cluster as usize + 1) * size]
    }

    /// Longest read, in pages.
    pub(crate) fn pages_max(&self) -> usize {
        let whole = self.facts.read_max as usize;
        let longest = (0..self.directory.list_count())
            .map(|l| self.shape.list_codes_bytes(self.directory.members(l) as usize))
            .max()
            .unwrap_or(0);
        (longest.max(whole).div_ceil(PAGE) + 1).next_power_of_two()
    }

    /// What a query remembers of a walk through the largest graph, with a beam of `list`: of each member whether it was met.
    pub(crate) fn walk_bytes(&self, list: u64) -> u64 {
        let graphs = (0..self.directory.clusters()).filter(|&c| self.directory.has_edges(c));
        let most = graphs.map(|c| self.directory.members_of(c).len() as u64).max();
        most.map_or(0, |most| most.div_ceil(8) + 16 * list)
    }

    /// The clusters of members with these external ids, by reading every record.
    pub(crate) fn clusters_of(
        &self,
        file: &File,
        path: &Path,
        ids: &HashSet<u64>,
    ) -> Result<HashMap<u64, u32>> {
        let size = self.shape.record_bytes();
        let mut reader = ListReader::new(self, file, path);
        let mut found = HashMap::new();
        for list in 0..self.directory.list_count() {
            let records = reader.records(list)?.chunks_exact(size);
            for (id, bytes) in (self.directory.ids[list as usize]..).zip(records) {
                let record = Record::verify(&self.shape, id, bytes).ok_or_else(|| {
                    Error::corrupt(format!(
                        "member {id} in {} is damaged; see `stratann verify`",
                        path.display()
                    ))
                })?;
                let external = record.external_id();
                if ids.contains(&external) {
                    found.insert(external, self.directory.cluster_of(list));
                }
            }
        }
        Ok(found)
    }

    /// Adds what lies in RAM.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("navigation graph", self.nav.bytes() as u64);
        account.add("centroids", self.centroids.len() as u64);
        account.add("directory of lists", self.directory.bytes() as u64 + CHOICE_BYTES);
        let planned = 4 * self.lists_planned.len() as u64;
        account.add("lists of divided clusters", sublist_bytes(&self.sublists) + planned);
        account.add("codebook", files::codebook_bytes(&self.codebook));
    }
}

/// Lists as they lie on disk, one at a time. All are read into the same buffer: with one each the allocator would be left with holes between
/// what is kept of them.
pub(crate) struct ListReader<'a> {
    parts: &'a ClusterParts,
    file: &'a File,
    path: &'a Path,
    buffer: Buffer,
}

impl<'a> ListReader<'a> {
    pub(crate) fn new(parts: &'a ClusterParts, file: &'a File, path: &'a Path) -> ListReader<'a> {
        ListReader { parts, file, path, buffer: Buffer::new(parts.pages_max() * PAGE) }
    }

    pub(crate) fn parts(&self) -> &'a ClusterParts {
        self.parts
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<&[u8]> {
        let pages = Pages::of(offset, length as u64);
        let bytes = pages.count as usize * PAGE;
        self.buffer.show(bytes);
        if self.buffer.bytes().len() < bytes {
            self.buffer = Buffer::new(bytes.next_power_of_two());
            self.buffer.show(bytes);
        }
        self.file
            .read_exact_at(self.buffer.bytes_mut(), u64::from(pages.first) * PAGE as u64)
            .map_err(|e| Error::io("reading", self.path, &e))?;
        Ok(&self.buffer.bytes()[pages.skip as usize..][..length])
    }

    /// A head.
    ///
    /// # Errors
    /// One that cannot be read, or is damaged.
    pub(crate) fn head(&mut self, list: u32) -> Result<&[u8]> {
        let (parts, path) = (self.parts, self.path);
        let offset = parts.directory.codes[list as usize];
        let bytes =
            self.read(offset, parts.shape.list_codes_bytes(parts.directory.members(list) as usize))?;
        if ListCodes::verify(&parts.shape, list, bytes).is_none() {
            return Err(Error::corrupt(format!(
                "posting list {list} (offset {offset}) of {} is damaged; restore the file or build the index again",
                path.display()
            )));
        }
        Ok(bytes)
    }

    /// The record of a member; `None` when there is no such member, or the record cannot be read or is damaged.
    pub(crate) fn record(&mut self, id: u32) -> Option<&[u8]> {
        let parts = self.parts;
        parts.directory.ids.last().filter(|&&end| id < end)?;
        let offset = parts.directory.record_at(&parts.shape, id);
        let bytes = self.read(offset, parts.shape.record_bytes()).ok()?;
        Record::verify(&parts.shape, id, bytes).map(|_| bytes)
    }

    /// The records of a list; they are verified when they are looked at.
    ///
    /// # Errors
    /// Those that cannot be read.
    pub(crate) fn records(&mut self, list: u32) -> Result<&[u8]> {
        let directory = &self.parts.directory;
        let length = directory.members(list) as usize * self.parts.shape.record_bytes();
        self.read(directory.records[list as usize], length)
    }
}

/// How often clusters with so many members each are visited, relative to each other; and whether `visits` say so.
pub(crate) fn weights(members: impl Iterator<Item = u64>, visits: &[u32]) -> (Vec<f64>, bool) {
    let observed = visits.iter().any(|&v| v > 0);
    let members: Vec<u64> = members.collect();
    let mean = members.iter().sum::<u64>() as f64 / members.len().max(1) as f64;
    // Queries come where vectors are, as long as nothing else is known; afterwards that counts as much as one visit.
    let weight = |(cluster, members): (usize, u64)| match visits.get(cluster) {
        Some(&v) if observed => f64::from(v) + members as f64 / mean.max(1.0),
        _ => members as f64,
    };
    (members.into_iter().enumerate().map(weight).collect(), observed)
}

fn sublist_bytes(sublists: &SubLists) -> u64 {
    (4 * (sublists.first.len() + sublists.terms.len()) + sublists.codes.len()) as u64
}

/// What all lists have in common.
pub(crate) fn list_layout(
    manifest: &Manifest,
    block: &block::BlockLayout,
    facts: &ClusterFacts,
) -> ListLayout {
    ListLayout {
        dim: manifest.dim,
        vector_bytes: block.vector_bytes,
        id_bytes: block.id_bytes,
        norms: block.norms,
        code_bytes: facts.code_bytes,
    }
}

//! What an open `hybrid-ivf` keeps in RAM.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_core::build::costs::{Model, Way};
use stratann_core::format::directory::{Directory, LocalKind, Pages};
use stratann_core::format::posting::{Head, Record, Shape};
use stratann_core::plan::{ClusterView, Pinned, Resident, SubLists};
use stratann_core::route::{NONE, NavGraph};
use stratann_core::{PAGE, format::block};
use stratann_kernel::codes::Codebook;

use crate::budget::Account;
use crate::manifest::{ClusterFacts, Manifest, read_file};
use crate::tier::Buffer;
use crate::{Error, Result, files};

/// See the module.
pub(crate) struct ClusterParts {
    pub(crate) shape: Shape,
    pub(crate) codebook: Codebook,
    pub(crate) directory: Directory,
    pub(crate) centroids: Vec<u8>,
    pub(crate) sublists: SubLists,
    pub(crate) nav: NavGraph,
    facts: ClusterFacts,
    // Lists that a visit scans, for each cluster.
    lists_planned: Vec<u32>,
}

/// A part of each of some lists, in RAM.
#[derive(Default)]
pub(crate) struct Kept {
    // For each list where it begins, in units of 4 bytes. Empty where nothing is kept.
    starts: Vec<u32>,
    bytes: Vec<u8>,
}

impl Kept {
    fn view(&self) -> Resident<'_> {
        Resident { starts: &self.starts, bytes: &self.bytes }
    }

    fn push(&mut self, list: u32, bytes: &[u8]) {
        self.starts[list as usize] = (self.bytes.len() / 4) as u32;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + 4 * self.starts.len()) as u64
    }
}

/// What lies in RAM of the lists, where there is room: their heads, and then their records.
#[derive(Default)]
pub(crate) struct Heads {
    heads: Kept,
    records: Kept,
}

impl Heads {
    /// Of the lists, those that need not be read.
    pub(crate) fn share_of(&self, directory: &Directory) -> f64 {
        let held = self.heads.starts.iter().filter(|&&s| s != NONE).count();
        held as f64 / f64::from(directory.list_count().max(1))
    }

    /// Adds what lies in RAM.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("codes in RAM", self.heads.memory_bytes());
        account.add("vectors in RAM", self.records.memory_bytes());
    }
}

impl ClusterParts {
    /// Reads and checks the files in RAM.
    pub(crate) fn load(folder: &Path, manifest: &Manifest, block: &block::Shape) -> Result<ClusterParts> {
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
        let shape = posting_shape(manifest, block, &facts);
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
        Ok(ClusterParts { shape, codebook, directory, centroids, sublists, nav, facts, lists_planned })
    }

    /// What the queries see.
    pub(crate) fn view<'a>(&'a self, heads: &'a Heads) -> ClusterView<'a> {
        ClusterView {
            directory: &self.directory,
            shape: self.shape,
            codebook: &self.codebook,
            centroids: &self.centroids,
            lists_planned: &self.lists_planned,
            sublists: &self.sublists,
            nav: &self.nav,
            resident: heads.heads.view(),
            resident_records: heads.records.view(),
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
            .map(|l| self.shape.head_bytes(self.directory.members(l) as usize))
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

    /// What keeping the codes of each cluster in RAM saves, a visit, over its bytes there; by the model that the plan was made by.
    fn savings(&self, model: &Model, visits: &[u32]) -> Vec<f64> {
        let clusters = 0..self.directory.clusters();
        let members =
            |c: u32| self.directory.lists_of(c).map(|l| u64::from(self.directory.members(l))).sum::<u64>();
        let weights = weights(clusters.clone().map(members), visits).0;
        let density = |c: u32| {
            let (kind, members) = (self.directory.kinds[c as usize], members(c));
            // A graph of codes on disk is scanned.
            let on_disk = if kind == LocalKind::Graph { LocalKind::Flat } else { kind };
            let cost = |kind, in_ram| model.visit_us(Way { kind, in_ram }, members);
            let weight = weights[c as usize];
            let bytes: usize = self.directory.lists_of(c).map(|l| self.head_bytes(l)).sum();
            weight * (cost(on_disk, false) - cost(kind, true)).max(0.0) / bytes.max(1) as f64
        };
        clusters.map(density).collect()
    }

    /// Brings codes into RAM, those first that save most for their bytes, as long as they fit in `head_budget`; then, in the same order, vectors as long as they
    /// fit in `record_budget` less what codes took.
    pub(crate) fn keep(
        &self,
        (file, path): (&File, &Path),
        head_budget: u64,
        record_budget: u64,
        model: &Model,
        visits: &[u32],
    ) -> Result<Heads> {
        let savings = self.savings(model, visits);
        let mut order: Vec<u32> = (0..self.directory.clusters()).collect();
        order.sort_by(|&a, &b| savings[b as usize].total_cmp(&savings[a as usize]).then(a.cmp(&b)));
        let heads =
            self.keep_part(&order, head_budget, &|l| self.head_bytes(l), &|l| self.head(file, path, l))?;
        let left = record_budget.saturating_sub(heads.memory_bytes());
        let records =
            self.keep_part(&order, left, &|l| self.records_bytes(l), &|l| self.records(file, path, l))?;
        Ok(Heads { heads, records })
    }

    /// The same part of all lists of the first clusters that fit.
    fn keep_part(
        &self,
        order: &[u32],
        budget_bytes: u64,
        size: &dyn Fn(u32) -> usize,
        read: &dyn Fn(u32) -> Result<(Buffer, Range<usize>)>,
    ) -> Result<Kept> {
        let mut kept = Kept::default();
        let table = 4 * u64::from(self.directory.list_count());
        let mut left = budget_bytes.saturating_sub(table);
        let mut lists = Vec::new();
        for &cluster in order {
            let bytes: u64 = self.directory.lists_of(cluster).map(|l| size(l) as u64).sum();
            if bytes <= left {
                left -= bytes;
                lists.extend(self.directory.lists_of(cluster));
            }
        }
        if budget_bytes <= table || lists.is_empty() {
            return Ok(kept);
        }
        // In the order of the file.
        lists.sort_unstable();
        kept.starts = vec![NONE; self.directory.list_count() as usize];
        kept.bytes.reserve_exact(lists.iter().map(|&l| size(l)).sum());
        for list in lists {
            let (buffer, range) = read(list)?;
            kept.push(list, &buffer.bytes()[range]);
        }
        Ok(kept)
    }

    /// Bytes of a head in RAM.
    fn head_bytes(&self, list: u32) -> usize {
        self.shape.head_bytes(self.directory.members(list) as usize).next_multiple_of(4)
    }

    /// Bytes of a list's records in RAM.
    fn records_bytes(&self, list: u32) -> usize {
        (self.directory.members(list) as usize * self.shape.record_bytes()).next_multiple_of(4)
    }

    /// Bytes of the file of lists, and where in the buffer they are.
    fn read(&self, file: &File, path: &Path, offset: u64, length: usize) -> Result<(Buffer, Range<usize>)> {
        let pages = Pages::of(offset, length as u64);
        let mut buffer = Buffer::new(pages.count as usize * PAGE);
        file.read_exact_at(buffer.bytes_mut(), u64::from(pages.first) * PAGE as u64)
            .map_err(|e| Error::io("reading", path, &e))?;
        let skip = pages.skip as usize;
        Ok((buffer, skip..skip + length))
    }

    fn head(&self, file: &File, path: &Path, list: u32) -> Result<(Buffer, Range<usize>)> {
        let length = self.shape.head_bytes(self.directory.members(list) as usize);
        let (buffer, range) = self.read(file, path, self.directory.heads[list as usize], length)?;
        if Head::verify(&self.shape, list, &buffer.bytes()[range.clone()]).is_none() {
            return Err(Error::corrupt(format!(
                "posting list {list} (offset {}) of {} is damaged; restore the file or build the index again",
                self.directory.heads[list as usize],
                path.display()
            )));
        }
        Ok((buffer, range))
    }

    /// Records are verified when they are looked at.
    fn records(&self, file: &File, path: &Path, list: u32) -> Result<(Buffer, Range<usize>)> {
        let length = self.directory.members(list) as usize * self.shape.record_bytes();
        self.read(file, path, self.directory.records[list as usize], length)
    }

    /// The clusters of members with these external ids, by reading every record.
    pub(crate) fn clusters_of(
        &self,
        file: &File,
        path: &Path,
        ids: &HashSet<u64>,
    ) -> Result<HashMap<u64, u32>> {
        let size = self.shape.record_bytes();
        let mut found = HashMap::new();
        for list in 0..self.directory.list_count() {
            let (buffer, range) = self.records(file, path, list)?;
            let records = buffer.bytes()[range].chunks_exact(size);
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
        account.add("directory of lists", self.directory.bytes() as u64);
        let planned = 4 * self.lists_planned.len() as u64;
        account.add("lists of divided clusters", sublist_bytes(&self.sublists) + planned);
        account.add("codebook", files::codebook_bytes(&self.codebook));
    }
}

/// How often clusters with so many members each are visited, relative to each other; and whether `visits` say so.
pub(crate) fn weights(members: impl Iterator<Item = u64>, visits: &[u32]) -> (Vec<f64>, bool) {
    let observed = visits.iter().any(|&v| v > 0);
    // Queries come where vectors are, as long as nothing else is known; afterwards hardly ever where none came.
    let weight = |(cluster, members): (usize, u64)| match visits.get(cluster) {
        Some(&v) if observed => f64::from(v) + 1e-3 * members as f64,
        _ => members as f64,
    };
    (members.enumerate().map(weight).collect(), observed)
}

fn sublist_bytes(sublists: &SubLists) -> u64 {
    (4 * (sublists.first.len() + sublists.terms.len()) + sublists.codes.len()) as u64
}

/// What all lists have in common.
pub(crate) fn posting_shape(manifest: &Manifest, block: &block::Shape, facts: &ClusterFacts) -> Shape {
    Shape {
        dim: manifest.dim,
        vector_bytes: block.vector_bytes,
        id_bytes: block.id_bytes,
        norms: block.norms,
        code_bytes: facts.code_bytes,
    }
}

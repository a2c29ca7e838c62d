//! The tables of a `hybrid-ivf` in RAM: coder, directory, centroids, navigation graph.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use stratann_core::build::costs::{ListSizes, UnitCosts, VisitCostModel};
use stratann_core::format::directory::{Directory, LocalKind};
use stratann_core::format::edges::edge_bytes;
use stratann_core::format::inverted_list::{ListLayout, Record};
use stratann_core::kinds::hybrid_ivf::{Pinned, SubLists, View};
use stratann_core::route::NavGraph;
use stratann_core::{PAGE, format::block};
use stratann_kernel::coder::Coder;
use stratann_storage::budget::Account;
use stratann_storage::{Error, Result};

use super::facts::{ListFacts, PlanReport};
use super::lists::ListReader;
use crate::base::{decode_role, read_role, shape};
use crate::files;
use crate::kinds::answers::ExactCost;
use crate::kinds::section::Section;
use crate::manifest::{LIST_CHOICE_BYTES, Manifest};
use crate::units::{Held, HeldRanges, UnitRanges, Units};

/// Most bytes of one read that a manifest may ask for. Builds choose up to 63 pages.
const READ_MAX: u32 = 1 << 20;

/// See the module. Never changed while the index is open.
pub(crate) struct ListTables {
    pub(crate) shape: ListLayout,
    pub(crate) coder: Coder,
    pub(crate) directory: Directory,
    pub(crate) centroids: Vec<u8>,
    pub(crate) sublists: SubLists,
    pub(crate) nav: Arc<NavGraph>,
    pub(crate) facts: ListFacts,
    /// Lists that a visit scans, for each cluster.
    pub(crate) lists_planned: Vec<u32>,
    /// Places of the lists of one server in its file; `None` where the file has all lists.
    held: Option<HeldRanges>,
}

impl ListTables {
    /// Reads and checks the files in RAM.
    pub(crate) fn load(folder: &Path, manifest: &Manifest, block: &block::BlockLayout) -> Result<ListTables> {
        let section = manifest.own(folder, Section::lists)?;
        let facts = section.facts;
        if facts.read_max > READ_MAX {
            return Err(Error::corrupt(format!(
                "{}: the manifest says that one read takes up to {} bytes, at most {READ_MAX} are possible; build the \
                 index again",
                folder.display(),
                facts.read_max
            )));
        }
        let coder = decode_role(folder, manifest, files::CODEBOOK, |bytes| {
            // Bounds are of what codes of residuals stand for.
            let fits =
                |c: &Coder| c.dim() == manifest.dim && c.code_bytes() == facts.code_bytes && !c.is_unbiased();
            files::decode_coder(bytes).filter(fits)
        })?;
        let shape = list_layout(manifest, block, &facts);
        let directory = read_directory(folder, manifest, &shape)?;
        let (nodes, clusters) = (manifest.rows as u32, directory.clusters());
        let (path, centroids) = read_role(folder, manifest, files::CENTROIDS)?;
        if centroids.len() != clusters as usize * 2 * shape.dim {
            return Err(files::senseless(&path));
        }
        let sublists = decode_role(folder, manifest, files::SUBLISTS, |bytes| {
            let is_divided = |c: u32| directory.kinds[c as usize] == LocalKind::Ivf;
            files::decode_sublists(bytes).filter(|s| {
                s.first.len() == clusters as usize
                    && s.codes.len() == s.terms.len() * shape.code_bytes
                    && (0..clusters).all(|c| !is_divided(c) || s.has_all(c, directory.lists_of(c).len()))
            })
        })?;
        let nav = decode_role(folder, manifest, files::NAV, |bytes| {
            files::decode_nav(bytes).filter(|n| n.is_consistent(clusters, nodes, shape.code_bytes))
        })?;
        let lists_planned = match &section.plan {
            Some(plan) => {
                let model = cost_model(plan, &shape, facts.read_max);
                let members = |c: u32| directory.members_of(c).len() as u64;
                (0..clusters).map(|c| model.lists_scanned(members(c)).ceil() as u32).collect()
            }
            None => Vec::new(),
        };
        Ok(ListTables {
            shape,
            coder,
            directory,
            centroids,
            sublists,
            nav: Arc::new(nav),
            facts,
            lists_planned,
            held: None,
        })
    }

    /// Limits the data file to the lists that one server holds.
    pub(crate) fn hold(&mut self, held: Held<'_>, manifest: &Manifest) {
        self.held = Some(HeldRanges::new(&self.unit_ranges(manifest), held));
    }

    /// Places of the lists of one server in its file.
    pub(crate) fn held_ranges(&self) -> Option<&HeldRanges> {
        self.held.as_ref()
    }

    /// Offset in the file that is open of bytes of the whole file; `None` when it does not have them.
    pub(crate) fn locate(&self, offset: u64, bytes: u64) -> Option<u64> {
        self.held.as_ref().map_or(Some(offset), |held| held.locate(offset, bytes))
    }

    /// Whether the file has all lists of a cluster.
    pub(crate) fn holds(&self, cluster: u32) -> bool {
        let has_codes = |list: u32| {
            let members = self.directory.members(list) as usize;
            let bytes = self.shape.list_codes_bytes(members) as u64;
            self.locate(self.directory.codes[list as usize], bytes).is_some()
        };
        self.held.is_none() || self.directory.lists_of(cluster).all(has_codes)
    }

    /// Whether the file has the record of a member.
    pub(crate) fn holds_record(&self, id: u32) -> bool {
        let bytes = self.shape.record_bytes() as u64;
        let is_member = self.directory.ids.last().is_some_and(|&end| id < end);
        is_member && self.locate(self.directory.record_at(&self.shape, id), bytes).is_some()
    }

    /// The part of the tables that queries see, with no lists resident.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            directory: &self.directory,
            shape: self.shape,
            coder: &self.coder,
            centroids: &self.centroids,
            lists_planned: &self.lists_planned,
            sublists: &self.sublists,
            nav: &self.nav,
            resident: &[],
            resident_records: &[],
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

    /// Lists that a query goes through that visits every one.
    pub(crate) fn exact_cost(&self) -> ExactCost {
        let members = |list| self.directory.members(list) as usize;
        let lists = 0..self.directory.list_count();
        ExactCost {
            count: u64::from(self.directory.list_count()),
            unit: "lists",
            bytes: lists.clone().map(|list| self.shape.list_codes_bytes(members(list)) as u64).sum(),
            vector_bytes_max: lists.map(|list| (members(list) * self.shape.record_bytes()) as u64).sum(),
            is_shared: false,
        }
    }

    /// The lists of each cluster, with all that queries read of them.
    pub(crate) fn units(&self) -> Units {
        let (directory, record) = (&self.directory, self.shape.record_bytes());
        let clusters = 0..directory.clusters();
        let bytes_of = |cluster| {
            let lists = directory.lists_of(cluster).map(|list| directory.members(list) as usize);
            let members = directory.members_of(cluster).len();
            let edges = if directory.has_edges(cluster) { edge_bytes(directory.degree as usize) } else { 0 };
            (lists.map(|members| self.shape.list_codes_bytes(members)).sum::<usize>()
                + members * (record + edges)) as u64
        };
        let centroids =
            self.centroids.chunks_exact(2).map(|c| half::f16::from_le_bytes([c[0], c[1]]).to_f32());
        Units {
            group_of: (0..directory.list_count()).map(|list| directory.cluster_of(list)).collect(),
            bytes: clusters.map(bytes_of).collect(),
            dim: self.shape.dim,
            points: centroids.collect(),
            visits: Vec::new(),
        }
    }

    /// The ranges of all lists in the file of a whole index.
    pub(crate) fn unit_ranges(&self, manifest: &Manifest) -> UnitRanges {
        unit_ranges(&self.directory, &self.shape, manifest)
    }

    /// Shows `see` each edge of the navigation graph between two clusters, as their first lists. A query visits such
    /// clusters one after the other.
    pub(crate) fn for_each_near_pair(&self, mut see: impl FnMut(u32, u32)) {
        let first = |node: u32| {
            let cluster = self.nav.cluster_of[node as usize];
            (cluster, self.directory.lists_of(cluster))
        };
        for node in 0..self.nav.nodes() {
            let (own, lists) = first(node);
            let others = self.nav.list(node).iter().map(|&other| first(other));
            for (_, others) in
                others.filter(|(c, others)| *c != own && !others.is_empty() && !lists.is_empty())
            {
                see(lists.start, others.start);
            }
        }
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

    /// Bytes that a query remembers of a walk through the largest graph, with a beam of `list`: of each member whether
    /// it was met.
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

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("navigation graph", self.nav.bytes() as u64);
        account.add("centroids", self.centroids.len() as u64);
        account.add("directory of lists", self.directory.bytes() as u64 + LIST_CHOICE_BYTES);
        let planned = 4 * self.lists_planned.len() as u64;
        account.add("lists of divided clusters", sublist_bytes(&self.sublists) + planned);
        account.add("codebook", files::coder_bytes(&self.coder));
        if let Some(held) = &self.held {
            account.add("ranges of lists", held.memory_bytes());
        }
    }
}

fn data_bytes(manifest: &Manifest) -> u64 {
    u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64
}

fn read_directory(folder: &Path, manifest: &Manifest, shape: &ListLayout) -> Result<Directory> {
    decode_role(folder, manifest, files::DIRECTORY, |bytes| {
        files::decode_directory(bytes)
            .filter(|d| d.is_consistent(shape, manifest.rows as u32, data_bytes(manifest)))
    })
}

/// Reads where all lists are in the file of a whole index.
///
/// # Errors
/// A directory that is missing or damaged.
pub(crate) fn read_unit_ranges(folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
    let block = shape(folder, manifest)?.block;
    let shape = list_layout(manifest, &block, &manifest.own(folder, Section::lists)?.facts);
    Ok(unit_ranges(&read_directory(folder, manifest, &shape)?, &shape, manifest))
}

/// The ranges of all lists in the file of a whole index.
fn unit_ranges(directory: &Directory, shape: &ListLayout, manifest: &Manifest) -> UnitRanges {
    let graphs = (0..directory.clusters()).filter(|&c| directory.has_edges(c));
    let edges = graphs.filter(|&c| !directory.members_of(c).is_empty());
    let edges = edges.map(|c| (directory.edges[c as usize], u64::from(directory.lists_of(c).start)));
    let mut starts: Vec<(u64, u64)> = edges.collect();
    for list in 0..directory.list_count() {
        let at = list as usize;
        starts.push((directory.codes[at], u64::from(list)));
        if !directory.is_whole(shape, list) && directory.members(list) > 0 {
            starts.push((directory.records[at], u64::from(list)));
        }
    }
    UnitRanges::sorted(starts, data_bytes(manifest))
}

fn sublist_bytes(sublists: &SubLists) -> u64 {
    (4 * (sublists.first.len() + sublists.terms.len()) + sublists.codes.len()) as u64
}

/// Layout of all lists.
pub(crate) fn list_layout(manifest: &Manifest, block: &block::BlockLayout, facts: &ListFacts) -> ListLayout {
    ListLayout {
        dim: manifest.dim,
        vector_bytes: block.vector_bytes,
        id_bytes: block.id_bytes,
        norms: block.norms,
        code_bytes: facts.code_bytes,
        checksum_seed: block.checksum_seed,
    }
}

/// Members of an adjacency list of a local graph, at most.
pub(crate) const DEGREE: usize = 24;

/// The cost model that a plan was made by, of lists of this shape.
pub(crate) fn cost_model(plan: &PlanReport, shape: &ListLayout, read_max: u32) -> VisitCostModel {
    let local = &plan.local;
    let unit_costs = UnitCosts {
        read_us: plan.read_us,
        byte_us: plan.kib_us / 1024.0,
        distance_us: plan.distance_us,
        alpha_flat: local.alpha_flat,
        beta_scan: local.beta_scan,
        hops: (local.hops_a, local.hops_b),
        lists: (local.lists_a, local.lists_b),
    };
    VisitCostModel { unit_costs, sizes: cost_sizes(shape, read_max) }
}

/// The sizes that costs depend on.
pub(crate) fn cost_sizes(shape: &ListLayout, read_max: u32) -> ListSizes {
    ListSizes {
        member_bytes: shape.member_bytes() as f64,
        overhead_bytes: shape.list_codes_bytes(0) as f64,
        read_max: f64::from(read_max),
        degree: DEGREE as f64,
    }
}

//! Copies a published version of an index into memory nodes.
//!
//! The version stays the truth: what is in the nodes can be loaded again. Groups are placed by their bytes and by the
//! traffic that is expected of them.

use std::path::Path;

use stratann_core::format::region::{ControlWords, DESCRIPTOR_BYTES, Descriptor, GROUP_ALIGN, Superblock};
use stratann_core::query::{Extent, StoreId};
use stratann_storage::budget::size;
use stratann_storage::remote_memory::{Credentials, Facts, Nodes, Operation, random};
use stratann_storage::{Error, Progress, Result};

use super::placement::{Division, Room, Weight, divide, divide_by_bytes};
use crate::base::Base;
use crate::files;
use crate::kinds::remote_hnsw::limits::check_clusters;
use crate::kinds::remote_hnsw::open::read_superblock;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use stratann_params::IndexKind;

/// Bytes that are copied by one request.
const CHUNK_BYTES: usize = 4 << 20;

/// Part of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadedNode {
    /// Bytes that it holds.
    pub used_bytes: u64,
    /// Bytes of its region.
    pub region_bytes: u64,
    /// Bytes that a batch is expected to read of it.
    pub traffic_bytes: u64,
}

/// Report of the copied index.
pub(crate) struct Copied {
    /// The number of the load.
    pub(crate) load: u64,
    /// Each node, by number.
    pub(crate) nodes: Vec<LoadedNode>,
    /// Groups of two clusters.
    pub(crate) groups: u32,
}

/// Refuses an index that memory nodes cannot hold.
///
/// # Errors
/// Another kind; more or larger clusters than a region has.
pub(crate) fn check_loadable(manifest: &Manifest, folder: &Path) -> Result<()> {
    if manifest.kind() != Some(IndexKind::RemoteHnsw) {
        return Err(Error::bad_input(format!(
            "{} is a {}; memory nodes hold a remote-hnsw, so build one with --kind remote-hnsw",
            folder.display(),
            manifest.kind
        )));
    }
    if manifest.deletes.is_some() {
        return Err(Error::bad_input(format!(
            "{} has deleted rows, which memory nodes would bring back; build from it without them (`stratann build \
             --from`), or take the delete back and delete in the memory nodes",
            folder.display()
        )));
    }
    let own = &manifest.own(folder, Section::remote)?.facts;
    check_clusters(own.clusters().into(), own.cluster_bytes_max.max(own.overflow_bytes()))
}

/// Copies an open index into memory nodes. Groups are placed by the bytes that a batch is expected to read of each
/// cluster too, or by their own bytes alone.
///
/// # Errors
/// Nodes that do not answer, whose numbers have gaps, or that are too small; damage; another load that begins; an
/// interruption.
pub(crate) fn copy_to_nodes(
    (base, folder): (&Base, &Path),
    (addresses, credentials): (&[String], &Credentials),
    (cluster_bytes, by_bytes): (&[u64], bool),
    progress: &dyn Progress,
) -> Result<Copied> {
    let mut nodes = Nodes::new(addresses, credentials)?;
    if let (Some(error), true) = (nodes.last_error(), nodes.facts().len() < addresses.len()) {
        return Err(error.clone().into());
    }
    let facts = nodes.facts();
    check_numbers(&facts)?;
    let image = Image::read(base, folder)?;
    let weights = image.weights(cluster_bytes);
    let mut plan = image.plan(&weights, by_bytes, &facts)?;
    // Each load has a random number. It is the epoch of the regions too: whoever knows an earlier one is refused.
    let sequence = random()?;
    plan.superblocks.iter_mut().for_each(|own| own.sequence = sequence);
    let load = Load { base, image: &image, plan: &plan, progress };
    nodes.begin_load(sequence)?;
    load.copy(&mut nodes)?;
    Ok(Copied { load: sequence, nodes: plan.nodes(&facts), groups: image.superblock.groups as u32 })
}

/// Bytes of the smallest region with so many bytes before the bits of its pages.
fn region_bytes_for(end: u64) -> u64 {
    let pages = end.div_ceil(GROUP_ALIGN);
    (pages..).find(|pages| Superblock::end_of(pages * GROUP_ALIGN) >= end).unwrap_or(pages) * GROUP_ALIGN
}

/// Checks that nodes have the numbers from 0 on.
fn check_numbers(facts: &[Facts]) -> Result<()> {
    match facts.iter().enumerate().find(|(at, own)| usize::from(own.node.0) != *at) {
        None => Ok(()),
        Some((wanted, own)) => Err(Error::bad_input(format!(
            "memory nodes must have the numbers from 0 on, but one of {} has the number {} and none has {wanted}; \
             start them with --node-id",
            facts.len(),
            own.node.0
        ))),
    }
}

/// The image in the folder.
struct Image {
    superblock: Superblock,
    groups: Vec<Descriptor>,
    meta: Vec<u8>,
    manifest: Vec<u8>,
    /// Bytes that each batch reads before its clusters.
    headers_bytes: u64,
}

/// Places of all parts.
struct Plan {
    /// Superblocks by node.
    superblocks: Vec<Superblock>,
    /// Descriptors by group.
    descriptors: Vec<Descriptor>,
    division: Division,
    /// Bytes that a batch is expected to read, by node.
    traffic: Vec<u64>,
}

impl Plan {
    fn nodes(&self, facts: &[Facts]) -> Vec<LoadedNode> {
        let held = self.division.used.iter().zip(&self.traffic);
        let node = |((&used_bytes, &traffic_bytes), own): ((&u64, &u64), &Facts)| LoadedNode {
            used_bytes,
            region_bytes: own.region_bytes,
            traffic_bytes,
        };
        held.zip(facts).map(node).collect()
    }
}

impl Image {
    fn read(base: &Base, folder: &Path) -> Result<Image> {
        let damaged = |what: &str| {
            Error::corrupt(format!(
                "{}: {what} is damaged; run `stratann verify`, then restore the file or build the index again",
                folder.display()
            ))
        };
        let facts = &base.manifest.own(folder, Section::remote)?.facts;
        let superblock = read_superblock(base, facts)?;
        let (_, meta) = crate::base::read_role(folder, &base.manifest, files::META)?;
        let mut groups = Vec::with_capacity(superblock.groups as usize);
        let mut bytes = Vec::new();
        for group in 0..superblock.groups as u32 {
            let offset = superblock.descriptor_at(group, 0);
            let at = Extent { store: StoreId(0), offset, bytes: DESCRIPTOR_BYTES as u32 };
            base.read_extent(&[], at, &mut bytes).map_err(|_| damaged("the table of groups"))?;
            let found = Descriptor::decode(superblock.build, group, 0, &bytes);
            groups.push(found.ok_or_else(|| damaged("the table of groups"))?);
        }
        let manifest = base.manifest.to_text()?.into_bytes();
        Ok(Image { superblock, groups, meta, manifest, headers_bytes: facts.headers_bytes() })
    }

    /// Space and traffic of each group.
    fn weights(&self, traffic_by_cluster: &[u64]) -> Vec<Weight> {
        let groups = self.groups.iter().zip(traffic_by_cluster.chunks(2));
        groups
            .map(|(group, traffic)| Weight {
                bytes: group.bytes_with_marks(self.superblock.record_bytes).next_multiple_of(GROUP_ALIGN),
                traffic: traffic.iter().sum(),
            })
            .collect()
    }

    /// Divides the groups over nodes.
    fn plan(&self, groups: &[Weight], by_bytes: bool, nodes: &[Facts]) -> Result<Plan> {
        let superblock = |own: &Facts| self.superblock_of(own, nodes.len());
        let superblocks: Vec<Superblock> = nodes.iter().map(superblock).collect();
        let room = |own: &Superblock| Room {
            used: own.groups_at,
            limit: own.end,
            // Headers are read of the first node.
            traffic: if own.node == 0 { self.headers_bytes } else { 0 },
        };
        let rooms: Vec<Room> = superblocks.iter().map(room).collect();
        let division = if by_bytes { divide_by_bytes(groups, &rooms) } else { divide(groups, &rooms) };
        for (own, &needed) in nodes.iter().zip(&division.used) {
            if needed > Superblock::end_of(own.region_bytes) {
                return Err(Error::budget(format!(
                    "memory node {} has a region of {}, and its part of the index takes {}; start it with --size {} or \
                     more, or add nodes",
                    own.node.0,
                    size(own.region_bytes),
                    size(needed),
                    region_bytes_for(needed)
                )));
            }
        }
        let placed = self.groups.iter().zip(&division.places).zip(groups);
        let descriptors =
            placed.map(|((group, &at), weight)| Descriptor { at, space: weight.bytes, ..*group }).collect();
        Ok(Plan { superblocks, descriptors, traffic: division.traffic(groups, &rooms), division })
    }

    fn superblock_of(&self, facts: &Facts, nodes: usize) -> Superblock {
        let place = Superblock { node: facts.node.0.into(), nodes: nodes as u64, ..self.superblock };
        let own = match facts.node.0 {
            0 => Superblock { manifest_bytes: self.manifest.len() as u64, ..place },
            _ => Superblock { groups: 0, clusters: 0, tombstones: 0, meta_bytes: 0, ..place },
        };
        Superblock { end: Superblock::end_of(facts.region_bytes), ..own.with_sections() }
    }

    /// Everything of a node but its superblocks, the sub-HNSWs, and what begins as zeros: the region has them.
    fn tables(&self, plan: &Plan, node: usize) -> Vec<(u64, Vec<u8>)> {
        let own = &plan.superblocks[node];
        let pages = plan.division.used[node].div_ceil(GROUP_ALIGN);
        let bits = |from: u64| (0..8).fold(0, |byte, bit| byte | u8::from(from + bit < pages) << bit);
        let mut all = vec![
            (own.control_at, ControlWords::default().encode().to_vec()),
            (own.end, (0..pages).step_by(8).map(bits).collect()),
        ];
        if node == 0 {
            let descriptors = (0..).zip(&plan.descriptors);
            all.extend(descriptors.map(|(group, descriptor)| {
                (own.descriptor_at(group, 0), descriptor.encode(own.build, group).to_vec())
            }));
            all.push((own.meta_at, self.meta.clone()));
            all.push((own.meta_at + own.meta_bytes, self.manifest.clone()));
        }
        all
    }
}

struct Load<'a> {
    base: &'a Base,
    image: &'a Image,
    plan: &'a Plan,
    progress: &'a dyn Progress,
}

impl Load<'_> {
    /// Writes everything. The superblocks go last: a node holds all of the index, or none of it.
    fn copy(&self, nodes: &mut Nodes) -> Result<()> {
        let all: u64 =
            self.image.groups.iter().map(|group| group.bytes(self.image.superblock.record_bytes)).sum();
        self.progress.stage("loading memory nodes", all, "bytes");
        for node in 0..self.plan.superblocks.len() {
            for (offset, bytes) in self.image.tables(self.plan, node) {
                write(nodes, node, offset, &bytes)?;
            }
        }
        for group in 0..self.image.groups.len() {
            self.copy_group(nodes, group)?;
            self.progress.advance(self.image.groups[group].bytes(self.image.superblock.record_bytes));
        }
        for (node, superblock) in self.plan.superblocks.iter().enumerate().rev() {
            write(nodes, node, 0, &superblock.encode())?;
        }
        Ok(())
    }

    fn copy_group(&self, nodes: &mut Nodes, group: usize) -> Result<()> {
        let (from, to) = (&self.image.groups[group], &self.plan.descriptors[group]);
        let record_bytes = self.image.superblock.record_bytes;
        let mut offset = from.at.offset();
        let end = offset + from.bytes(record_bytes);
        let mut bytes = Vec::new();
        while offset < end {
            self.progress.check_interrupted()?;
            let length = (end - offset).min(CHUNK_BYTES as u64) as u32;
            let at = Extent { store: StoreId(0), offset, bytes: length };
            self.base.read_extent(&[], at, &mut bytes).map_err(|_| {
                Error::corrupt(format!(
                    "{}: group {group} cannot be read; run `stratann verify`, then restore the file",
                    self.base.folder.display()
                ))
            })?;
            write(nodes, to.at.node().into(), to.at.offset() + (offset - from.at.offset()), &bytes)?;
            offset += u64::from(length);
        }
        Ok(())
    }
}

fn write(nodes: &mut Nodes, node: usize, offset: u64, bytes: &[u8]) -> Result<()> {
    for (at, part) in (offset..).step_by(CHUNK_BYTES).zip(bytes.chunks(CHUNK_BYTES)) {
        nodes.execute(node as u8, &mut [Operation::Write { offset: at, from: part }])?;
    }
    Ok(())
}

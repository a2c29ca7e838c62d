//! Gives every row its id and its block, and writes blocks, lists, centroids and the navigation graph in the order of
//! ids (FusionANNS §4.3).

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::format::posting_lists::PostingLists;
use stratann_core::route::{NONE, NavGraph};
use stratann_storage::{Error, Result, budget};

use super::members::{self, DEGREE, Navigation};
use super::{clusters, pack};
use crate::clusterings::kmeans::Members;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::gpu_ivf::facts::{GpuFacts, SizeStats};
use crate::manifest::BlockShape;
use crate::stages::blocks::graph_file::Cell;
use crate::stages::blocks::layout::{Design, ORDER, job, shape};
use crate::stages::blocks::placement::{Packed, Placement};
use crate::stages::blocks::write::BlockJob;
use crate::stages::build::{Build, IDS};
use crate::stages::space::Space;
use crate::stages::tables::write_table;

/// Pages of a block, at most.
const PAGES_MAX: usize = 4;
/// Share of a block that vectors must fill for it to be taken.
const SHARE: f64 = 0.92;

/// Facts of the layout, and shape of the blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) facts: GpuFacts,
    pub(crate) blocks: BlockShape,
}

pub(crate) fn run(build: &Build<'_>, space: &Space, scan: &Scan, lists: u32) -> Result<Written> {
    build.progress.stage("packing", scan.rows, "rows");
    let design = design(build)?;
    // The nearest list of each live row; the others come last.
    let rows = build.base.shape().rows as usize;
    let mut nearest = vec![lists; rows];
    members::for_each(build, |row, near| {
        if let Some(&list) = near.first() {
            nearest[row as usize] = list;
        }
    })?;
    let of_list = Members::new(nearest.iter().copied(), lists as usize + 1);
    let sizes: Vec<u32> = (0..lists as usize).map(|list| of_list.of(list).len() as u32).collect();
    drop(nearest);
    let packed = pack::pack(&sizes, design.nodes_per_block);
    let in_order: Vec<u32> =
        packed.lists.iter().flat_map(|&list| of_list.of(list as usize)).copied().collect();
    drop(of_list);
    let mut placement = Placement::new(rows);
    placement.append(&Packed { counts: packed.counts, rows: in_order });
    write_table(&build.partial.path(IDS), &placement.id_of_row)?;
    write_table(&build.file(files::MAP), &files::encode_map(&placement.counts))?;
    budget::release_freed();
    let (postings, members) = postings(build, &packed.lists, &sizes, &placement.id_of_row)?;
    write_table(&build.file(files::POSTINGS), &files::encode_postings(&postings))?;
    let facts = facts(&postings, &members, (&design, scan.rows, placement.counts.len()));
    drop((postings, members));
    write_routes(build, space, &packed.lists)?;
    let made_from = [build.file(files::POSTINGS), build.file(files::MAP), build.partial.path(IDS)];
    let design = design.sealed(build.checksum_seed(&made_from)?);
    write_blocks(build, scan, &design, &placement)?;
    let blocks = design.facts(placement.counts.len(), scan.rows, &Default::default()).blocks;
    Ok(Written { facts, blocks })
}

fn facts(
    postings: &PostingLists,
    members: &[u64],
    (design, rows, blocks): (&Design, u64, usize),
) -> GpuFacts {
    let total: u64 = members.iter().sum();
    let replicas = total - rows;
    GpuFacts {
        sizes: SizeStats::of(members),
        replication: total as f64 / rows as f64,
        replica_bytes: postings.replicas.len() as f64 / replicas.max(1) as f64,
        vectors_per_block: design.nodes_per_block as u32,
        filled: rows as f64 / (blocks * design.nodes_per_block) as f64,
        ..GpuFacts::default()
    }
}

/// The smallest blocks that vectors nearly fill, or of all that are tried those that they fill best.
fn design(build: &Build<'_>) -> Result<Design> {
    let filled = |pages: usize| {
        let shape = shape(build, pages * PAGE, false, 0);
        let count = (shape.payload_bytes() / shape.node_bytes()).min(usize::from(u16::MAX));
        (count * shape.vector_bytes) as f64 / shape.block_bytes as f64
    };
    // A vector may take more than a few pages.
    let least = (build.base.shape().row_bytes() + 64).div_ceil(PAGE);
    let all = || least..=least.max(PAGES_MAX);
    let best = all().max_by(|&a, &b| filled(a).total_cmp(&filled(b)).then(b.cmp(&a))).unwrap_or(least);
    let pages = all().find(|&pages| filled(pages) >= SHARE).unwrap_or(best);
    let shape = shape(build, pages * PAGE, false, 0);
    let nodes_per_block = (shape.payload_bytes() / shape.node_bytes()).min(usize::from(u16::MAX));
    if nodes_per_block == 0 {
        return Err(Error::bad_input("vectors are too long for a block"));
    }
    Ok(Design { shape, nodes_per_block })
}

/// The members of all lists in their new order, and their numbers. Replicas are collected for as many lists at a time
/// as the memory allows.
fn postings(
    build: &Build<'_>,
    lists: &[u32],
    sizes: &[u32],
    id_of_row: &[u32],
) -> Result<(PostingLists, Vec<u64>)> {
    let mut number = vec![0u32; lists.len()];
    (0..).zip(lists).for_each(|(new, &old)| number[old as usize] = new);
    let mut replicas = vec![0u32; lists.len()];
    members::for_each(build, |_, near| {
        near.iter().skip(1).for_each(|&list| replicas[number[list as usize] as usize] += 1);
    })?;
    let room = (build.plan.block_memory_bytes / 8).max(1);
    let (mut postings, mut members) = (PostingLists::default(), Vec::with_capacity(lists.len()));
    let mut from = 0;
    while from < lists.len() {
        build.progress.check_interrupted()?;
        let mut held = 0u64;
        let fits = |count: &&u32| {
            held += u64::from(**count);
            held <= room
        };
        let to = from + replicas[from..].iter().take_while(fits).count().max(1);
        let mut pairs: Vec<(u32, u32)> =
            Vec::with_capacity(replicas[from..to].iter().map(|&c| c as usize).sum());
        members::for_each(build, |row, near| {
            let new = near.iter().skip(1).map(|&list| number[list as usize]);
            let within = new.filter(|&new| (from..to).contains(&(new as usize)));
            pairs.extend(within.map(|new| (new, id_of_row[row as usize])));
        })?;
        pairs.sort_unstable();
        let mut rest = &pairs[..];
        for list in from..to {
            let (of_list, later) = rest.split_at(replicas[list] as usize);
            let ids: Vec<u32> = of_list.iter().map(|pair| pair.1).collect();
            let own = sizes[lists[list] as usize];
            postings.push(own, &ids);
            members.push(u64::from(own) + ids.len() as u64);
            rest = later;
        }
        from = to;
    }
    Ok((postings, members))
}

/// Writes centroids and navigation graph in the order of `lists`, their old numbers.
fn write_routes(build: &Build<'_>, space: &Space, lists: &[u32]) -> Result<()> {
    let (dim, point_dim) = (build.base.shape().dim, space.point_dim());
    let mut number = vec![0u32; lists.len()];
    (0..).zip(lists).for_each(|(new, &old)| number[old as usize] = new);
    let graph = Navigation::read(build)?;
    let mut neighbours = Vec::with_capacity(graph.neighbours.len());
    for &old in lists {
        let list = &graph.neighbours[old as usize * DEGREE..][..DEGREE];
        neighbours.extend(list.iter().map(|&n| if n == NONE { NONE } else { number[n as usize] }));
    }
    let count = lists.len();
    let nav = NavGraph {
        cluster_of: (0..count as u32).collect(),
        ids: vec![NONE; count],
        terms: vec![0.0; count],
        radii: vec![0.0; count],
        degree: DEGREE as u32,
        neighbours,
        entry: number[graph.entry as usize],
        bootstrap: count as u32,
        ..NavGraph::default()
    };
    write_table(&build.file(files::NAV), &files::encode_nav(&nav))?;
    drop(nav);
    let centroids = clusters::read(build)?;
    let of_lists: Vec<f32> =
        lists.iter().flat_map(|&old| &centroids[old as usize * point_dim..][..dim]).copied().collect();
    write_table(&build.file(files::CENTROIDS), &clusters::stored(&of_lists))
}

fn write_blocks(build: &Build<'_>, scan: &Scan, design: &Design, placement: &Placement) -> Result<()> {
    let order = build.partial.path(ORDER);
    write_table(&order, &build.live_rows(scan))?;
    build.progress.stage("writing blocks", scan.rows, "vectors");
    let cells = [Cell { start: 0, end: scan.rows as u32 }];
    let spill = Some(build.partial.folder());
    let job = BlockJob { spill, ..job(build, design, placement, &order, &cells) };
    job.write(0..1, &build.file(files::BLOCKS), build.progress).map(|_| ())
}

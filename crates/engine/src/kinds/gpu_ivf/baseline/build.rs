//! Files for searches as other systems do them: lists with copies of vectors and of codes, and vectors in the order of
//! rows. All blocks and codes are in memory meanwhile.

use std::os::unix::fs::FileExt;

use stratann_core::format::block::{self, Block, BlockLayout, Node};
use stratann_core::format::posting_file::{self, PostingLayout, PostingMember};
use stratann_core::format::posting_lists::PostingLists;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

use super::files::layouts;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::gpu_ivf::build::layout::Written;
use crate::stages::blocks::layout::shape;
use crate::stages::build::{Build, IDS, read_coder};
use crate::stages::tables::{read_table, write_table};

/// Writes the files.
pub(crate) fn run(build: &Build<'_>, scan: &Scan, written: &Written) -> Result<()> {
    let plain = shape(build, written.blocks.bytes, false, 0);
    let layout = BlockLayout { checksum_seed: written.blocks.checksum_seed, ..plain };
    let bytes = read_all(build, files::BLOCKS)?;
    let blocks = bytes.chunks_exact(layout.block_bytes).map(|bytes| Block::open(&layout, bytes));
    let blocks: Vec<Block<'_>> = blocks
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| files::senseless(&build.file(files::BLOCKS)))?;
    let mut slots: Vec<(u32, u32)> = Vec::with_capacity(scan.rows as usize);
    for (number, block) in (0..).zip(&blocks) {
        slots.extend((0..block.count() as u32).map(|slot| (number, slot)));
    }
    let vectors = Vectors { blocks, slots };
    let postings = files::decode_postings(&read_all(build, files::POSTINGS)?)
        .ok_or_else(|| files::senseless(&build.file(files::POSTINGS)))?;
    let code_bytes = read_coder(&build.file(files::CODEBOOK))?.layout().code_bytes();
    let (list, code_list) = layouts(&layout, code_bytes);
    build.progress.stage("lists of other systems", 2 * u64::from(postings.count()), "lists");
    write_lists(build, files::LIST_VECTORS, (&postings, list), |id| vectors.member(id))?;
    let codes = read_all(build, files::CODES)?;
    write_lists(build, files::LIST_CODES, (&postings, code_list), |id| {
        let entry = &codes[id as usize * code_bytes..][..code_bytes];
        PostingMember { id, entry, inverse_norm: 1.0, external_id: 0 }
    })?;
    write_rows(build, scan, &layout, written, &vectors)
}

fn read_all(build: &Build<'_>, role: &str) -> Result<Vec<u8>> {
    let path = build.file(role);
    let failed = |e: std::io::Error| Error::io("reading", &path, &e);
    let file = input::open(&path)?;
    let mut bytes = vec![0u8; file.metadata().map_err(failed)?.len() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

/// All vectors by their ids.
struct Vectors<'a> {
    blocks: Vec<Block<'a>>,
    slots: Vec<(u32, u32)>,
}

impl<'a> Vectors<'a> {
    fn member(&self, id: u32) -> PostingMember<'a> {
        let (number, slot) = self.slots[id as usize];
        let (block, slot) = (&self.blocks[number as usize], slot as usize);
        PostingMember {
            id,
            entry: block.vector(slot),
            inverse_norm: block.inverse_norm(slot),
            external_id: block.external_id(slot),
        }
    }
}

fn write_lists<'a>(
    build: &Build<'_>,
    role: &str,
    (postings, layout): (&PostingLists, PostingLayout),
    member: impl Fn(u32) -> PostingMember<'a>,
) -> Result<()> {
    let mut out = AtomicFile::create(&build.file(role))?;
    let (mut ids, mut bytes) = (Vec::new(), Vec::new());
    for list in 0..postings.count() {
        build.progress.check_interrupted()?;
        let (first, count) = postings.own(list);
        ids.clear();
        ids.extend(first..first + count);
        postings.replicas_of(list, &mut ids).ok_or_else(|| files::senseless(&build.file(files::POSTINGS)))?;
        let members: Vec<PostingMember<'_>> = ids.iter().map(|&id| member(id)).collect();
        bytes.clear();
        posting_file::write(&layout, list, &members, &mut bytes);
        out.write(&bytes)?;
        build.progress.advance(1);
    }
    out.commit()
}

/// Writes blocks in the order of rows, and the place of each vector there.
fn write_rows(
    build: &Build<'_>,
    scan: &Scan,
    layout: &BlockLayout,
    written: &Written,
    vectors: &Vectors<'_>,
) -> Result<()> {
    let id_of_row: Vec<u32> = read_table(&build.partial.path(IDS))?;
    let in_order: Vec<u32> = build.live_rows(scan).iter().map(|&row| id_of_row[row as usize]).collect();
    let mut places = vec![0u32; in_order.len()];
    (0..).zip(&in_order).for_each(|(place, &id)| places[id as usize] = place);
    write_table(&build.file(files::PLACES), &places)?;
    let each = written.facts.vectors_per_block as usize;
    let mut out = AtomicFile::create(&build.file(files::ROW_BLOCKS))?;
    let mut bytes = Vec::new();
    for (number, ids) in (0u32..).zip(in_order.chunks(each)) {
        let node = |&id: &u32| {
            let PostingMember { entry, inverse_norm, external_id, .. } = vectors.member(id);
            Node { vector: entry, inverse_norm, external_id, neighbours: &[] }
        };
        let nodes: Vec<Node<'_>> = ids.iter().map(node).collect();
        bytes.clear();
        block::write(layout, number, number * each as u32, &nodes, &[], &mut bytes);
        out.write(&bytes)?;
    }
    out.commit()
}

//! Reads vectors out of blocks, past any search: shared by the kinds whose blocks hold vectors.

pub(crate) mod explain;
pub(crate) mod plan;
pub(crate) mod verify;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) use stratann_core::exact::ResidentRows;
use stratann_core::format::block::{self, Block};
use stratann_core::query::{Extent, Loss, Outcome, StoreId};
use stratann_storage::cache::ExtentCache;
use stratann_storage::tier::{Buffer, in_huge_pages};
use stratann_storage::{Error, Progress, Result};

use crate::base::{Base, IndexShape, shape};
use crate::exec::failure;
use crate::files;
use crate::kinds::answers::{ExactCost, Member, PlannedQuery, SeeMembers, code_query_bytes};
use crate::manifest::Manifest;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Queries in flight per thread: enough to keep the disk's queue long. See `decisions/` for the measurement.
pub const IN_FLIGHT: usize = 64;

/// The memory of queries of a graph of blocks, as far as the manifest tells; rounded up where it does not.
pub(crate) fn planned_query(manifest: &Manifest) -> PlannedQuery {
    let code_bytes = manifest.build.get("code_bytes").and_then(|v| v.as_u64()).unwrap_or(0) as usize;
    PlannedQuery {
        in_flight: IN_FLIGHT,
        tables_bytes: 3 * code_query_bytes(manifest, code_bytes) + 16_384,
        read_bytes: manifest.blocks.bytes,
    }
}

/// A cache of `budget_bytes` for single blocks; `None` when not even a few fit.
pub(crate) fn cache(base: &Base, budget_bytes: u64) -> Option<ExtentCache> {
    let blocks = &base.manifest.blocks;
    ExtentCache::of_blocks(budget_bytes, blocks.count, blocks.bytes as u32)
}

/// Bytes of a cache that holds all blocks.
pub(crate) fn usable_cache_bytes(manifest: &Manifest) -> u64 {
    ExtentCache::bytes_of_blocks(manifest.blocks.count, manifest.blocks.bytes as u64)
}

/// The roles of the files besides the blocks that every server of a partitioned index needs whole.
pub(crate) fn shared_roles(manifest: &Manifest) -> Vec<&'static str> {
    let codes = if manifest.blocks.code_bytes > 0 { files::HEAD_CODES } else { files::CODES };
    vec![codes, files::CODEBOOK, files::MAP, files::HEAD]
}

/// Work of a query that reads all blocks.
pub(crate) fn exact_cost(base: &Base) -> ExactCost {
    let (count, unit) = scan_work(base);
    ExactCost {
        count,
        unit,
        bytes: count * base.block.block_bytes as u64,
        vector_bytes_max: 0,
        is_shared: false,
    }
}

/// Steps by which [`for_each_member`] advances the progress: a number and its unit.
pub(crate) fn scan_work(base: &Base) -> (u64, &'static str) {
    (base.manifest.blocks.count.into(), "blocks")
}

/// The external id and the vector of a node that block `number` holds.
///
/// # Errors
/// A disk that fails, a damaged block.
pub(crate) fn member(base: &Base, number: u32, node: u32) -> Result<(u64, Vec<u8>)> {
    member_at(base, number, extent(base, number).offset, node)
}

/// As [`member`], where the block has another place in the file: a server has some blocks alone.
///
/// # Errors
/// As [`member`].
pub(crate) fn member_at(base: &Base, number: u32, offset: u64, node: u32) -> Result<(u64, Vec<u8>)> {
    let buffer = read_at(base, offset, base.block.block_bytes)?;
    let block = open(base, number, buffer.bytes())?;
    let slot = node.wrapping_sub(block.first_id()) as usize;
    if slot >= block.count() {
        return Err(damaged(base, number));
    }
    Ok((block.external_id(slot), block.vector(slot).to_vec()))
}

/// Shows every node to `see`, block by block.
///
/// # Errors
/// As [`member`]; an interruption.
pub(crate) fn for_each_member(base: &Base, progress: &dyn Progress, see: &mut SeeMembers<'_>) -> Result<()> {
    for_each_run(base, progress, &mut |blocks| {
        let members: Vec<Member<'_>> = blocks.iter().flat_map(members).collect();
        see(&members);
    })
}

/// Shows the neighbours of every node of a graph to `see`, block by block.
///
/// # Errors
/// As [`for_each_member`].
pub(crate) fn for_each_list(
    base: &Base,
    progress: &dyn Progress,
    see: &mut dyn FnMut(u32, &[u32]),
) -> Result<()> {
    let (mut list, mut number, mut is_sound) = (Vec::new(), 0, true);
    for_each_block(base, progress, &mut |block| {
        for slot in 0..block.count() {
            list.clear();
            is_sound &= block.neighbours(slot, &mut list).is_some();
            if is_sound {
                see(block.first_id().wrapping_add(slot as u32), &list);
            }
        }
        number += u32::from(is_sound);
    })?;
    if is_sound { Ok(()) } else { Err(damaged(base, number)) }
}

/// Shows every block to `see`, in order.
///
/// # Errors
/// As [`for_each_member`].
pub(crate) fn for_each_block(
    base: &Base,
    progress: &dyn Progress,
    see: &mut dyn FnMut(&Block<'_>),
) -> Result<()> {
    for_each_run(base, progress, &mut |blocks| blocks.iter().for_each(&mut *see))
}

/// Bytes of the rows of all blocks in memory; `None` of a partition.
pub(crate) fn rows_bytes_max(manifest: &Manifest) -> Option<u64> {
    let IndexShape { block, .. } = shape(Path::new(""), manifest).ok()?;
    manifest.spread.is_none().then(|| ResidentRows::bytes_of(manifest.rows, &block))
}

/// Reads the rows of all blocks into memory, where a budget has room for them.
///
/// # Errors
/// As [`for_each_member`].
pub(crate) fn load_rows(
    base: &Base,
    budget_bytes: u64,
    progress: &dyn Progress,
) -> Result<Option<ResidentRows>> {
    if ResidentRows::bytes_of(base.manifest.rows, &base.block) > budget_bytes {
        return Ok(None);
    }
    let mut rows = ResidentRows::with_room(base.manifest.rows as usize, &base.block);
    in_huge_pages(rows.room());
    progress.stage("loading vectors", u64::from(base.manifest.blocks.count), "blocks");
    for_each_block(base, progress, &mut |block| rows.push(block))?;
    Ok(Some(rows))
}

/// Shows the blocks with these numbers to `see`, in order. Where `cache` has all of them they come from there,
/// otherwise they are read and kept there. Returns how many were read.
///
/// # Errors
/// As [`member`].
pub(crate) fn for_each_of(
    base: &Base,
    cache: Option<&ExtentCache>,
    numbers: Range<u32>,
    see: &mut dyn FnMut(&Block<'_>),
) -> Result<u32> {
    let cached: Option<Vec<_>> =
        cache.and_then(|cache| numbers.clone().map(|number| cache.get(extent(base, number))).collect());
    if let Some(cached) = cached {
        for (number, bytes) in numbers.zip(&cached) {
            see(&Block::open(&base.block, bytes).map_err(|_| damaged(base, number))?);
        }
        return Ok(0);
    }
    let count = numbers.end - numbers.start;
    let buffer = read(base, numbers.start, count)?;
    for (number, bytes) in numbers.zip(buffer.bytes().chunks_exact(base.block.block_bytes)) {
        see(&open(base, number, bytes)?);
        if let Some(cache) = cache {
            cache.put(extent(base, number), bytes);
        }
    }
    Ok(count)
}

fn for_each_run(base: &Base, progress: &dyn Progress, see: &mut dyn FnMut(&[Block<'_>])) -> Result<()> {
    let (count, size) = (base.manifest.blocks.count, base.block.block_bytes);
    let at_once = (READ_BYTES / size).max(1) as u32;
    for first in (0..count).step_by(at_once as usize) {
        progress.check_interrupted()?;
        let some = at_once.min(count - first);
        let buffer = read(base, first, some)?;
        let bytes = buffer.bytes().chunks_exact(size).enumerate();
        let blocks = bytes.map(|(i, b)| open(base, first + i as u32, b)).collect::<Result<Vec<_>>>()?;
        see(&blocks);
        progress.advance(u64::from(some));
    }
    Ok(())
}

fn members<'a>(block: &'a Block<'a>) -> impl Iterator<Item = Member<'a>> + use<'a> {
    (0..block.count()).map(|slot| Member {
        id: block.first_id().wrapping_add(slot as u32),
        vector: block.vector(slot),
        inverse_norm: block.inverse_norm(slot),
        external_id: block.external_id(slot),
    })
}

fn read(base: &Base, first: u32, count: u32) -> Result<Buffer> {
    read_at(base, extent(base, first).offset, count as usize * base.block.block_bytes)
}

fn read_at(base: &Base, offset: u64, bytes: usize) -> Result<Buffer> {
    let mut buffer = Buffer::new(bytes);
    let read = base.blocks_file()?.read_exact_at(buffer.bytes_mut(), offset);
    read.map(|()| buffer).map_err(|e| Error::io("reading", &base.blocks_path, &e))
}

fn open<'a>(base: &Base, number: u32, bytes: &'a [u8]) -> Result<Block<'a>> {
    block::verify(&base.block, number, bytes)
        .and_then(|()| Block::open(&base.block, bytes))
        .map_err(|_| damaged(base, number))
}

fn extent(base: &Base, number: u32) -> Extent {
    let bytes = base.block.block_bytes as u32;
    Extent { store: StoreId(0), offset: u64::from(number) * u64::from(bytes), bytes }
}

fn damaged(base: &Base, block: u32) -> Error {
    let outcome = Outcome::Lost { unit: block, at: extent(base, block), loss: Loss::Damaged };
    Error::corrupt(failure(outcome, &base.blocks_path).unwrap_or_default())
}

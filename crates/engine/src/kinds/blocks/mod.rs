//! Reads vectors out of blocks, past any search: shared by the kinds whose blocks hold vectors.

pub(crate) mod explain;
pub(crate) mod plan;
pub(crate) mod verify;

use std::os::unix::fs::FileExt;

use stratann_core::format::block::{self, Block};
use stratann_core::query::{Extent, Loss, Outcome, StoreId};
use stratann_storage::tier::Buffer;
use stratann_storage::{Error, Progress, Result};

use crate::base::Base;
use crate::exec::failure;
use crate::kinds::answers::Member;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// The vector of a node that block `number` holds.
///
/// # Errors
/// A disk that fails, a damaged block.
pub(crate) fn vector(base: &Base, number: u32, node: u32) -> Result<Vec<u8>> {
    let buffer = read(base, number, 1)?;
    let block = open(base, number, buffer.bytes())?;
    let slot = node.wrapping_sub(block.first_id()) as usize;
    if slot >= block.count() {
        return Err(damaged(base, number));
    }
    Ok(block.vector(slot).to_vec())
}

/// Shows every node to `see`, block by block.
///
/// # Errors
/// As [`vector`]; an interruption.
pub(crate) fn for_each_member(
    base: &Base,
    progress: &dyn Progress,
    see: &mut (dyn FnMut(&[Member<'_>]) + Send),
) -> Result<()> {
    let (count, size) = (base.manifest.blocks.count, base.block.block_bytes);
    let at_once = (READ_BYTES / size).max(1) as u32;
    for first in (0..count).step_by(at_once as usize) {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let some = at_once.min(count - first);
        let buffer = read(base, first, some)?;
        let bytes = buffer.bytes().chunks_exact(size).enumerate();
        let blocks = bytes.map(|(i, b)| open(base, first + i as u32, b)).collect::<Result<Vec<_>>>()?;
        let members: Vec<Member<'_>> = blocks.iter().flat_map(members).collect();
        see(&members);
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
    let size = base.block.block_bytes;
    let mut buffer = Buffer::new(count as usize * size);
    let read = base.blocks_file()?.read_exact_at(buffer.bytes_mut(), u64::from(first) * size as u64);
    read.map(|()| buffer).map_err(|e| Error::io("reading", &base.blocks_path, &e))
}

fn open<'a>(base: &Base, number: u32, bytes: &'a [u8]) -> Result<Block<'a>> {
    block::verify(&base.block, number, bytes)
        .and_then(|()| Block::open(&base.block, bytes))
        .map_err(|_| damaged(base, number))
}

fn damaged(base: &Base, block: u32) -> Error {
    let bytes = base.block.block_bytes as u32;
    let at = Extent { store: StoreId(0), offset: u64::from(block) * u64::from(bytes), bytes };
    let outcome = Outcome::Lost { unit: block, at, loss: Loss::Damaged };
    Error::corrupt(failure(outcome, &base.blocks_path).unwrap_or_default())
}

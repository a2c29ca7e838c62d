//! Device memory: the mirror of the structs and constants of `kernels/common.cuh`, and the memory account.
//!
//! The codes of an index take two parts of memory: the codes, and their blocks. A block has all that one query needs:
//!
//! | part | bytes |
//! |---|---|
//! | header, query, ranges, ids or rows: sent | 48 + query + max(4 ids_max, rows_bytes_max) |
//! | count, distinct ids, results: sent back | 16 + 8 keep_max |
//! | a key for each candidate | 8 ids_max |
//! | hash table of the ids outside of ranges | 8 ids_max |
//! | components of the query as the planes meet them | about dim for each plane |
//!
//! A query has the bytes of [`BitPlanes::query_bytes`], and with a job of vectors 4 dim.

use crate::bits::{BitPlanes, PLANES_MAX, PlaneParams};
use crate::options::JOBS_MAX;
use crate::{CodesOptions, Error};
use stratann_kernel::bits::BitCoder;

/// Source of the kernels.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/common.cuh"),
    include_str!("../kernels/score.cu"),
    include_str!("../kernels/vectors.cu"),
    include_str!("../kernels/bits.cu"),
);

/// Bytes of `JobHeader`, up to the query.
pub(crate) const HEADER_BYTES: usize = 48;

/// Bytes of `ResultHeader`.
pub(crate) const RESULT_HEADER_BYTES: usize = 16;

/// Allowance for the compiled kernels, which all codes on a device share, and the driver's rounding of allocations.
const MODULE_BYTES: u64 = 8 << 20;

/// Alignment of every part, as of the driver's allocations.
const ALIGNMENT: u64 = 256;

/// Kernels in the order in which the CPU's launcher numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Arranges the components of queries, and clears what other kernels add to.
    Arrange,
    /// Expands ranges and removes duplicates.
    Gather,
    /// Computes distances of codes.
    Distances,
    /// Selects and sorts the nearest.
    Top,
    /// Computes exact distances of vectors that come with a job.
    Vectors,
}

impl Kernel {
    /// Every kernel, by number.
    pub(crate) const ALL: [Kernel; 5] =
        [Kernel::Arrange, Kernel::Gather, Kernel::Distances, Kernel::Top, Kernel::Vectors];

    /// The function's name in the source.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Arrange => "arrange",
            Kernel::Gather => "gather",
            Kernel::Distances => "distances",
            Kernel::Top => "top",
            Kernel::Vectors => "vectors",
        }
    }
}

/// `Params` of the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) codes: u64,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u64,
    pub(crate) codes_count: u32,
    pub(crate) code_bytes: u32,
    pub(crate) dim: u32,
    pub(crate) ip: u32,
    pub(crate) results_at: u32,
    pub(crate) keys_at: u32,
    pub(crate) hash_at: u32,
    pub(crate) components_at: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) plane_count: u32,
    pub(crate) factor_bytes: u32,
    pub(crate) term_count: u32,
    pub(crate) planes: [PlaneParams; PLANES_MAX],
    pub(crate) jobs: u32,
    pub(crate) slots: [u32; JOBS_MAX],
}

/// Parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    pub(crate) results_at: u64,
    pub(crate) keys_at: u64,
    pub(crate) hash_at: u64,
    pub(crate) components_at: u64,
    pub(crate) bytes: u64,
}

impl BlockLayout {
    /// Computes the layout for a coder.
    pub(crate) fn new(options: &CodesOptions, coder: &BitCoder) -> BlockLayout {
        let (ids, keep) = (u64::from(options.ids_max), u64::from(options.keep_max));
        let layout = coder.layout();
        // Jobs of vectors have a query of floats.
        let of_vectors = if options.rows_bytes_max > 0 { 4 * layout.dim() as u64 } else { 0 };
        let query = BitPlanes::query_bytes(layout).max(of_vectors);
        let mut end = 0;
        let mut part = |bytes: u64| {
            let at = end;
            end = (at + bytes).next_multiple_of(ALIGNMENT);
            at
        };
        part(HEADER_BYTES as u64 + query + (4 * ids).max(u64::from(options.rows_bytes_max)));
        BlockLayout {
            results_at: part(RESULT_HEADER_BYTES as u64 + 8 * keep),
            keys_at: part(8 * ids),
            hash_at: part(8 * ids),
            components_at: part(BitPlanes::new(layout).components_bytes),
            bytes: part(0),
        }
    }

    /// Bytes that the host has for each block: what is sent and what comes back.
    pub(crate) fn staging_bytes(&self) -> u64 {
        self.keys_at
    }
}

/// Memory of the codes of one index on a device, part by part, in bytes. The driver's own context (some hundred MB) is
/// not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccount {
    /// The codes.
    pub codes: u64,
    /// All blocks.
    pub blocks: u64,
    /// Number of blocks.
    pub block_count: u32,
    /// Allowance for the compiled kernels. It is in the account of all codes, though a device has its kernels once.
    pub module: u64,
    /// Pinned memory of the host: a staging area for each block. It is no part of the total.
    pub host_staging: u64,
}

impl MemoryAccount {
    /// Computes the account for `codes` bytes and `block_count` blocks.
    pub(crate) fn new(block: &BlockLayout, codes: u64, block_count: u32) -> MemoryAccount {
        MemoryAccount {
            codes: codes.next_multiple_of(ALIGNMENT),
            blocks: block.bytes * u64::from(block_count),
            block_count,
            module: MODULE_BYTES,
            host_staging: block.staging_bytes() * u64::from(block_count),
        }
    }

    /// Cuts what the codes leave of a budget into at most `blocks_max` blocks.
    pub(crate) fn plan(
        block: &BlockLayout,
        blocks_max: usize,
        codes: u64,
        budget: u64,
    ) -> Result<MemoryAccount, Error> {
        let smallest = MemoryAccount::new(block, codes, 1);
        if budget < smallest.total() {
            return Err(Error::Budget { needed: smallest.total(), given: budget });
        }
        let more = (budget - smallest.total()) / smallest.blocks;
        let count = more.saturating_add(1).min(blocks_max as u64) as u32;
        Ok(MemoryAccount::new(block, codes, count))
    }

    /// Bytes of all parts on the device.
    pub fn total(&self) -> u64 {
        self.codes + self.blocks + self.module
    }
}

impl Params {
    /// Parameters that all batches of the same codes share, without addresses. The arranged components of a query go to
    /// shared memory where they have at most `shared_max` bytes.
    pub(crate) fn new(block: &BlockLayout, coder: &BitCoder, codes_count: u32, shared_max: u32) -> Params {
        let layout = coder.layout();
        let BitPlanes { planes, count, components_bytes } = BitPlanes::new(layout);
        // All components or none: a code meets each of them.
        let fits = components_bytes <= u64::from(shared_max);
        Params {
            codes: 0,
            blocks: 0,
            block_bytes: block.bytes,
            codes_count,
            code_bytes: layout.code_bytes() as u32,
            dim: layout.dim() as u32,
            ip: u32::from(coder.is_ip()),
            results_at: block.results_at as u32,
            keys_at: block.keys_at as u32,
            hash_at: block.hash_at as u32,
            components_at: block.components_at as u32,
            shared_bytes: if fits { components_bytes as u32 } else { 0 },
            plane_count: count,
            factor_bytes: layout.factor_bytes() as u32,
            term_count: BitPlanes::terms(layout) as u32,
            planes,
            jobs: 0,
            slots: [0; JOBS_MAX],
        }
    }
}

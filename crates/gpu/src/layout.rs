//! Device memory: the mirror of the structs and constants of `kernels/common.cuh`, and the memory account.
//!
//! Memory has three parts: the codes, the codebook of codes that are trained, and blocks. A block has all that one
//! query needs:
//!
//! | part | bytes | when |
//! |---|---|---|
//! | header, query, ranges, ids or rows: sent | 48 + query + max(4 ids_max, rows_bytes_max) | always |
//! | count, distinct ids, results: sent back | 16 + 8 keep_max | always |
//! | a key for each candidate | 8 ids_max | always |
//! | hash table of the ids outside of ranges | 8 ids_max | always |
//! | rotated query, with and without the origin | 8 dim | trained |
//! | float terms and spans | 1032 (entries + 1) | trained |
//! | integer table | 512 entries, and 2048 where codes have coarse stages | trained |
//! | components of the query as the planes meet them | about dim for each plane | bits |
//!
//! `entries` are the bytes of a code without those of the first stage and of the correction. A query has 4 dim bytes,
//! or those of [`BitPlanes::query_bytes`] for codes of bits.

use crate::bits::{BitPlanes, PLANES_MAX, PlaneParams};
use crate::options::JOBS_MAX;
use crate::{DeviceOptions, Error};
use stratann_kernel::bits::BitCoder;
use stratann_kernel::coder::Coder;
use stratann_kernel::trained_codes::{CENTROIDS, Codebook};

/// Source of the kernels.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/common.cuh"),
    include_str!("../kernels/table.cu"),
    include_str!("../kernels/score.cu"),
    include_str!("../kernels/vectors.cu"),
    include_str!("../kernels/bits.cu"),
);

/// Bytes of `JobHeader`, up to the query.
pub(crate) const HEADER_BYTES: usize = 48;

/// Bytes of `ResultHeader`.
pub(crate) const RESULT_HEADER_BYTES: usize = 16;

/// Allowance for the compiled kernels and the driver's rounding of allocations.
const MODULE_BYTES: u64 = 8 << 20;

/// Alignment of every part, as of the driver's allocations.
const ALIGNMENT: u64 = 256;

/// Kernels in the order in which the CPU's launcher numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    /// Rotates queries, and clears what other kernels add to.
    Rotate,
    /// Computes float terms.
    Terms,
    /// Makes them the integers of the table.
    Quantise,
    /// Expands ranges and removes duplicates.
    Gather,
    /// Sums table entries.
    Distances,
    /// Selects and sorts the nearest.
    Top,
    /// Computes exact distances of vectors that come with a job.
    Vectors,
    /// Arranges the components of queries for codes of bits, and clears what other kernels add to.
    Arrange,
    /// Computes distances of codes of bits.
    BitDistances,
}

impl Kernel {
    /// Every kernel, by number.
    pub(crate) const ALL: [Kernel; 9] = [
        Kernel::Rotate,
        Kernel::Terms,
        Kernel::Quantise,
        Kernel::Gather,
        Kernel::Distances,
        Kernel::Top,
        Kernel::Vectors,
        Kernel::Arrange,
        Kernel::BitDistances,
    ];

    /// The function's name in the source.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kernel::Rotate => "rotate",
            Kernel::Terms => "terms",
            Kernel::Quantise => "quantise",
            Kernel::Gather => "gather",
            Kernel::Distances => "distances",
            Kernel::Top => "top",
            Kernel::Vectors => "vectors",
            Kernel::Arrange => "arrange",
            Kernel::BitDistances => "bit_distances",
        }
    }
}

/// `Params` of the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) codes: u64,
    pub(crate) rotation: u64,
    pub(crate) coarse: u64,
    pub(crate) centroids: u64,
    pub(crate) starts: u64,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u64,
    pub(crate) codes_count: u32,
    pub(crate) code_bytes: u32,
    pub(crate) dim: u32,
    pub(crate) wide: u32,
    pub(crate) stages: u32,
    pub(crate) subspaces: u32,
    pub(crate) coarse_count: u32,
    pub(crate) ip: u32,
    pub(crate) correction_low: f32,
    pub(crate) correction_step: f32,
    pub(crate) results_at: u32,
    pub(crate) keys_at: u32,
    pub(crate) hash_at: u32,
    pub(crate) rotated_at: u32,
    pub(crate) centred_at: u32,
    pub(crate) floats_at: u32,
    pub(crate) spans_at: u32,
    pub(crate) table_at: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) components_at: u32,
    pub(crate) plane_count: u32,
    pub(crate) factor_bytes: u32,
    pub(crate) term_count: u32,
    pub(crate) planes: [PlaneParams; PLANES_MAX],
    pub(crate) jobs: u32,
    pub(crate) slots: [u32; JOBS_MAX],
}

/// Parts of a block. Those that its codes do not need have no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockLayout {
    pub(crate) results_at: u64,
    pub(crate) keys_at: u64,
    pub(crate) hash_at: u64,
    pub(crate) rotated_at: u64,
    pub(crate) centred_at: u64,
    pub(crate) floats_at: u64,
    pub(crate) spans_at: u64,
    pub(crate) table_at: u64,
    pub(crate) table_bytes: u64,
    pub(crate) components_at: u64,
    pub(crate) bytes: u64,
}

/// Bytes of the parts of a block that depend on the codes.
#[derive(Default)]
struct OfCodes {
    query: u64,
    rotated: u64,
    floats: u64,
    spans: u64,
    table: u64,
    components: u64,
}

impl OfCodes {
    fn new(options: &DeviceOptions, coder: &Coder) -> OfCodes {
        let floats = 4 * coder.dim() as u64;
        match coder {
            Coder::Trained(codebook) => {
                let entries = entries(codebook) as u64;
                let wide = if codebook.stages() > 0 { 8 * CENTROIDS as u64 } else { 0 };
                OfCodes {
                    query: floats,
                    rotated: floats,
                    floats: 4 * CENTROIDS as u64 * (entries + 1),
                    spans: 8 * (entries + 1),
                    table: wide + 2 * CENTROIDS as u64 * entries,
                    components: 0,
                }
            }
            Coder::Bits(coder) => {
                let planes = BitPlanes::new(coder.layout());
                // Jobs of vectors have a query of floats.
                let of_vectors = if options.rows_bytes_max > 0 { floats } else { 0 };
                let query = BitPlanes::query_bytes(coder.layout()).max(of_vectors);
                OfCodes { query, components: planes.components_bytes, ..OfCodes::default() }
            }
        }
    }
}

impl BlockLayout {
    /// Computes the layout for a coder.
    pub(crate) fn new(options: &DeviceOptions, coder: &Coder) -> BlockLayout {
        let (ids, keep) = (u64::from(options.ids_max), u64::from(options.keep_max));
        let own = OfCodes::new(options, coder);
        let mut end = 0;
        let mut part = |bytes: u64| {
            let at = end;
            end = (at + bytes).next_multiple_of(ALIGNMENT);
            at
        };
        part(HEADER_BYTES as u64 + own.query + (4 * ids).max(u64::from(options.rows_bytes_max)));
        BlockLayout {
            results_at: part(RESULT_HEADER_BYTES as u64 + 8 * keep),
            keys_at: part(8 * ids),
            hash_at: part(8 * ids),
            rotated_at: part(own.rotated),
            centred_at: part(own.rotated),
            floats_at: part(own.floats),
            spans_at: part(own.spans),
            table_at: part(own.table),
            table_bytes: own.table,
            components_at: part(own.components),
            bytes: part(0),
        }
    }

    /// Bytes that the host has for each block: what is sent and what comes back.
    pub(crate) fn staging_bytes(&self) -> u64 {
        self.keys_at
    }
}

/// Number of bytes of a code that have a block of 256 entries.
pub(crate) fn entries(codebook: &Codebook) -> usize {
    let wide = if codebook.stages() > 0 { 2 } else { 0 };
    codebook.code_bytes().saturating_sub(wide)
}

/// Memory of a device, part by part, in bytes. The driver's own context (some hundred MB) is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccount {
    /// The codes.
    pub codes: u64,
    /// The codebook; 0 for codes of bits.
    pub codebook: u64,
    /// All blocks.
    pub blocks: u64,
    /// Number of blocks.
    pub block_count: u32,
    /// Allowance for the compiled kernels.
    pub module: u64,
    /// Pinned memory of the host: a staging area for each block. It is no part of the total.
    pub host_staging: u64,
}

impl MemoryAccount {
    /// Computes the account for `block_count` blocks.
    pub(crate) fn new(options: &DeviceOptions, coder: &Coder, codes: u64, block_count: u32) -> MemoryAccount {
        let block = BlockLayout::new(options, coder);
        MemoryAccount {
            codes: codes.next_multiple_of(ALIGNMENT),
            codebook: codebook_parts(coder).iter().map(|part| aligned(part.len())).sum(),
            blocks: block.bytes * u64::from(block_count),
            block_count,
            module: MODULE_BYTES,
            host_staging: block.staging_bytes() * u64::from(block_count),
        }
    }

    /// Cuts what codes and codebook leave of a budget into blocks.
    pub(crate) fn plan(
        options: &DeviceOptions,
        coder: &Coder,
        codes: u64,
        budget: u64,
    ) -> Result<MemoryAccount, Error> {
        let smallest = MemoryAccount::new(options, coder, codes, 1);
        if budget < smallest.total() {
            return Err(Error::Budget { needed: smallest.total(), given: budget });
        }
        let more = (budget - smallest.total()) / smallest.blocks;
        let count = more.saturating_add(1).min(options.queries_in_flight as u64) as u32;
        Ok(MemoryAccount::new(options, coder, codes, count))
    }

    /// Bytes of all parts on the device.
    pub fn total(&self) -> u64 {
        self.codes + self.codebook + self.blocks + self.module
    }
}

fn aligned(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALIGNMENT)
}

/// Rotation, coarse centroids, subspace centroids and borders, as they lie on the device. Codes of bits have nothing
/// there: the host prepares their queries.
pub(crate) fn codebook_parts(coder: &Coder) -> [&[u8]; 4] {
    match coder {
        Coder::Trained(codebook) => [
            bytemuck::cast_slice(&codebook.rotation),
            bytemuck::cast_slice(&codebook.coarse),
            bytemuck::cast_slice(&codebook.centroids),
            bytemuck::cast_slice(&codebook.starts),
        ],
        Coder::Bits(_) => [&[]; 4],
    }
}

/// Starts of the codebook's parts behind `address`.
pub(crate) fn codebook_addresses(coder: &Coder, address: u64) -> [u64; 4] {
    let mut next = address;
    codebook_parts(coder).map(|part| {
        let at = next;
        next += aligned(part.len());
        at
    })
}

/// Addresses of codes, codebook and blocks in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) codes: u64,
    pub(crate) codebook: u64,
    pub(crate) blocks: u64,
}

impl Params {
    /// Parameters that all batches of a device share. At most `shared_max` bytes of what a query has for all its
    /// candidates go to shared memory.
    pub(crate) fn new(
        layout: &BlockLayout,
        coder: &Coder,
        codes_count: u32,
        addresses: Addresses,
        shared_max: u32,
    ) -> Params {
        let mut params = Params {
            codes: addresses.codes,
            rotation: 0,
            coarse: 0,
            centroids: 0,
            starts: 0,
            blocks: addresses.blocks,
            block_bytes: layout.bytes,
            codes_count,
            code_bytes: coder.code_bytes() as u32,
            dim: coder.dim() as u32,
            wide: 0,
            stages: 0,
            subspaces: 0,
            coarse_count: 0,
            ip: 0,
            correction_low: 0.0,
            correction_step: 0.0,
            results_at: layout.results_at as u32,
            keys_at: layout.keys_at as u32,
            hash_at: layout.hash_at as u32,
            rotated_at: layout.rotated_at as u32,
            centred_at: layout.centred_at as u32,
            floats_at: layout.floats_at as u32,
            spans_at: layout.spans_at as u32,
            table_at: layout.table_at as u32,
            shared_bytes: 0,
            components_at: layout.components_at as u32,
            plane_count: 0,
            factor_bytes: 0,
            term_count: 0,
            planes: [PlaneParams::default(); PLANES_MAX],
            jobs: 0,
            slots: [0; JOBS_MAX],
        };
        match coder {
            Coder::Trained(codebook) => {
                [params.rotation, params.coarse, params.centroids, params.starts] =
                    codebook_addresses(coder, addresses.codebook);
                params.set_codebook(codebook, layout.table_bytes, shared_max);
            }
            Coder::Bits(coder) => params.set_bits(coder, shared_max),
        }
        params
    }

    fn set_codebook(&mut self, codebook: &Codebook, table_bytes: u64, shared_max: u32) {
        if codebook.rotation.is_empty() {
            self.rotation = 0;
        }
        self.wide = if codebook.stages() > 0 { 2 } else { 0 };
        self.stages = codebook.stages() as u32;
        self.subspaces = codebook.subspaces() as u32;
        self.coarse_count = codebook.coarse_count() as u32;
        self.ip = u32::from(codebook.ip);
        self.correction_low = codebook.correction_low;
        self.correction_step = codebook.correction_step;
        // Whole blocks of entries.
        self.shared_bytes = table_bytes.min(u64::from(shared_max) / 2048 * 2048) as u32;
    }

    fn set_bits(&mut self, coder: &BitCoder, shared_max: u32) {
        let layout = coder.layout();
        let BitPlanes { planes, count, components_bytes } = BitPlanes::new(layout);
        self.ip = u32::from(coder.is_ip());
        (self.planes, self.plane_count) = (planes, count);
        self.factor_bytes = layout.factor_bytes() as u32;
        self.term_count = BitPlanes::terms(layout) as u32;
        // All components or none: a code meets each of them.
        let fits = components_bytes <= u64::from(shared_max);
        self.shared_bytes = if fits { components_bytes as u32 } else { 0 };
    }
}

//! Device memory: the mirror of the structs and constants of `kernels/common.cuh`, and the memory account.
//!
//! Memory has three parts: the codes, the codebook, and blocks. A block has all that one query needs:
//!
//! | part | bytes |
//! |---|---|
//! | header, query, ranges, ids or rows: sent | 48 + 4 dim + max(4 ids_max, rows_bytes_max) |
//! | count, distinct ids, results: sent back | 16 + 8 keep_max |
//! | a key for each candidate | 8 ids_max |
//! | hash table of the ids outside of ranges | 8 ids_max |
//! | rotated query, with and without the origin | 8 dim |
//! | float terms and spans | 1032 (entries + 1) |
//! | integer table | 512 entries, and 2048 where codes have coarse stages |
//!
//! `entries` are the bytes of a code without those of the first stage and of the correction.

use crate::options::JOBS_MAX;
use crate::{DeviceOptions, Error, Failure};
use stratann_kernel::codes::{CENTROIDS, Codebook};

/// Source of the kernels.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/common.cuh"),
    include_str!("../kernels/table.cu"),
    include_str!("../kernels/score.cu"),
    include_str!("../kernels/vectors.cu"),
);

/// Bytes of `JobHeader`, up to the query.
pub(crate) const HEADER_BYTES: usize = 48;

/// Bytes of `ResultHeader`.
pub(crate) const RESULT_HEADER_BYTES: usize = 16;

/// Allowance for the compiled kernels and the driver's rounding of allocations.
const MODULE_BYTES: u64 = 8 << 20;

/// Alignment of every part, as of the driver's allocations.
const ALIGNMENT: u64 = 256;

/// Largest float that terms may reach; above it, sums of floats could overflow and order NaNs by their bits.
const FLOAT_MAX: f64 = 1e37;

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
}

impl Kernel {
    /// Every kernel, by number.
    pub(crate) const ALL: [Kernel; 7] = [
        Kernel::Rotate,
        Kernel::Terms,
        Kernel::Quantise,
        Kernel::Gather,
        Kernel::Distances,
        Kernel::Top,
        Kernel::Vectors,
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
    pub(crate) jobs: u32,
    pub(crate) slots: [u32; JOBS_MAX],
}

/// Parts of a block.
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
    pub(crate) bytes: u64,
}

impl BlockLayout {
    /// Computes the layout for a codebook.
    pub(crate) fn new(options: &DeviceOptions, codebook: &Codebook) -> BlockLayout {
        let (dim, ids, keep) = (codebook.dim as u64, u64::from(options.ids_max), u64::from(options.keep_max));
        let entries = entries(codebook) as u64;
        let wide_bytes = if codebook.stages() > 0 { 8 * CENTROIDS as u64 } else { 0 };
        let table_bytes = wide_bytes + 2 * CENTROIDS as u64 * entries;
        let mut end = 0;
        let mut part = |bytes: u64| {
            let at = end;
            end = (at + bytes).next_multiple_of(ALIGNMENT);
            at
        };
        part(HEADER_BYTES as u64 + 4 * dim + (4 * ids).max(u64::from(options.rows_bytes_max)));
        let results_at = part(RESULT_HEADER_BYTES as u64 + 8 * keep);
        let keys_at = part(8 * ids);
        let hash_at = part(8 * ids);
        let rotated_at = part(4 * dim);
        let centred_at = part(4 * dim);
        let floats_at = part(4 * CENTROIDS as u64 * (entries + 1));
        let spans_at = part(8 * (entries + 1));
        let table_at = part(table_bytes);
        let bytes = part(0);
        BlockLayout {
            results_at,
            keys_at,
            hash_at,
            rotated_at,
            centred_at,
            floats_at,
            spans_at,
            table_at,
            table_bytes,
            bytes,
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
    /// The codebook.
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
    pub(crate) fn new(
        options: &DeviceOptions,
        codebook: &Codebook,
        codes: u64,
        block_count: u32,
    ) -> MemoryAccount {
        let block = BlockLayout::new(options, codebook);
        MemoryAccount {
            codes: codes.next_multiple_of(ALIGNMENT),
            codebook: codebook_parts(codebook).iter().map(|part| aligned(part.len())).sum(),
            blocks: block.bytes * u64::from(block_count),
            block_count,
            module: MODULE_BYTES,
            host_staging: block.staging_bytes() * u64::from(block_count),
        }
    }

    /// Cuts what codes and codebook leave of a budget into blocks.
    pub(crate) fn plan(
        options: &DeviceOptions,
        codebook: &Codebook,
        codes: u64,
        budget: u64,
    ) -> Result<MemoryAccount, Error> {
        let smallest = MemoryAccount::new(options, codebook, codes, 1);
        if budget < smallest.total() {
            return Err(Error::Budget { needed: smallest.total(), given: budget });
        }
        let more = (budget - smallest.total()) / smallest.blocks;
        let count = more.saturating_add(1).min(options.queries_in_flight as u64) as u32;
        Ok(MemoryAccount::new(options, codebook, codes, count))
    }

    /// Bytes of all parts on the device.
    pub fn total(&self) -> u64 {
        self.codes + self.codebook + self.blocks + self.module
    }
}

fn aligned(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(ALIGNMENT)
}

/// Rotation, coarse centroids, subspace centroids and borders, as they lie on the device.
pub(crate) fn codebook_parts(codebook: &Codebook) -> [&[u8]; 4] {
    [
        bytemuck::cast_slice(&codebook.rotation),
        bytemuck::cast_slice(&codebook.coarse),
        bytemuck::cast_slice(&codebook.centroids),
        bytemuck::cast_slice(&codebook.starts),
    ]
}

/// Starts of the codebook's parts behind `address`.
pub(crate) fn codebook_addresses(codebook: &Codebook, address: u64) -> [u64; 4] {
    let mut next = address;
    codebook_parts(codebook).map(|part| {
        let at = next;
        next += aligned(part.len());
        at
    })
}

/// Checks that the kernels can score codes of this codebook; returns the number of codes.
pub(crate) fn check_codes(codebook: &Codebook, codes: &[u8]) -> Result<u32, Error> {
    let refuse = |why: &str| Err(Error::Codebook(why.to_string()));
    if !codebook.is_consistent() {
        return refuse("the lengths in the codebook do not agree");
    }
    let size = codebook.code_bytes();
    if !codes.len().is_multiple_of(size) {
        return refuse(&format!("{} bytes are not a whole number of codes of {size} bytes", codes.len()));
    }
    let Some(count) = u32::try_from(codes.len() / size).ok().filter(|&count| count < u32::MAX) else {
        return refuse("there are more than 2^32 - 2 of them");
    };
    let correction =
        f64::from(codebook.correction_low).abs() + 255.0 * f64::from(codebook.correction_step).abs();
    if correction > FLOAT_MAX || Magnitudes::new(codebook).terms(0.0) > FLOAT_MAX {
        return refuse("its floats are so large that distances could overflow");
    }
    Ok(count)
}

/// Largest absolute values in a codebook.
#[derive(Clone, Copy, Debug)]
struct Magnitudes {
    dim: f64,
    // By how much a rotation can enlarge the largest component.
    rotation: f64,
    centroids: f64,
}

impl Magnitudes {
    fn new(codebook: &Codebook) -> Magnitudes {
        let largest = |floats: &[f32]| floats.iter().fold(0f64, |m, &x| m.max(f64::from(x).abs()));
        let dim = codebook.dim as f64;
        let rotation = if codebook.rotation.is_empty() { 1.0 } else { dim * largest(&codebook.rotation) };
        Magnitudes { dim, rotation, centroids: largest(&codebook.coarse).max(largest(&codebook.centroids)) }
    }

    /// Upper bound of the sum of all terms of a query whose largest component is `query`.
    fn terms(&self, query: f64) -> f64 {
        100.0 * self.dim * (self.rotation * query + self.centroids).powi(2)
    }
}

/// Limits that a job is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) codes_count: u32,
    pub(crate) ids_max: u32,
    pub(crate) keep_max: u32,
    pub(crate) rows_bytes_max: u32,
    pub(crate) dim: usize,
    magnitudes: Magnitudes,
}

impl Limits {
    /// Limits of a device with `codes_count` codes.
    pub(crate) fn new(options: &DeviceOptions, codebook: &Codebook, codes_count: u32) -> Limits {
        Limits {
            codes_count,
            ids_max: options.ids_max,
            keep_max: options.keep_max,
            rows_bytes_max: options.rows_bytes_max,
            dim: codebook.dim,
            magnitudes: Magnitudes::new(codebook),
        }
    }

    /// Checks a query's dimension, and that no float of its table can overflow. Without overflow there is no NaN, and
    /// only NaNs differ between a CPU and a GPU.
    pub(crate) fn check_query(&self, query: &[f32]) -> Result<(), Failure> {
        if query.len() != self.dim {
            let what = format!("it has {} components, and the codebook {}", query.len(), self.dim);
            return Err(Failure::Query { what });
        }
        let largest =
            query.iter().fold(0f64, |m, &x| if x.is_finite() { m.max(f64::from(x).abs()) } else { f64::MAX });
        if self.magnitudes.terms(largest) > FLOAT_MAX {
            return Err(Failure::Query {
                what: "its distances could exceed the range of floats".to_string(),
            });
        }
        Ok(())
    }
}

/// Addresses of codes, codebook and blocks in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) codes: u64,
    pub(crate) codebook: u64,
    pub(crate) blocks: u64,
}

impl Params {
    /// Parameters that all batches of a device share. At most `shared_max` bytes of a table go to shared memory.
    pub(crate) fn new(
        layout: &BlockLayout,
        codebook: &Codebook,
        codes_count: u32,
        addresses: Addresses,
        shared_max: u32,
    ) -> Params {
        let [rotation, coarse, centroids, starts] = codebook_addresses(codebook, addresses.codebook);
        // Whole blocks of entries.
        let shared_max = u64::from(shared_max) / 2048 * 2048;
        Params {
            codes: addresses.codes,
            rotation: if codebook.rotation.is_empty() { 0 } else { rotation },
            coarse,
            centroids,
            starts,
            blocks: addresses.blocks,
            block_bytes: layout.bytes,
            codes_count,
            code_bytes: codebook.code_bytes() as u32,
            dim: codebook.dim as u32,
            wide: if codebook.stages() > 0 { 2 } else { 0 },
            stages: codebook.stages() as u32,
            subspaces: codebook.subspaces() as u32,
            coarse_count: codebook.coarse_count() as u32,
            ip: u32::from(codebook.ip),
            correction_low: codebook.correction_low,
            correction_step: codebook.correction_step,
            results_at: layout.results_at as u32,
            keys_at: layout.keys_at as u32,
            hash_at: layout.hash_at as u32,
            rotated_at: layout.rotated_at as u32,
            centred_at: layout.centred_at as u32,
            floats_at: layout.floats_at as u32,
            spans_at: layout.spans_at as u32,
            table_at: layout.table_at as u32,
            shared_bytes: layout.table_bytes.min(shared_max) as u32,
            jobs: 0,
            slots: [0; JOBS_MAX],
        }
    }
}

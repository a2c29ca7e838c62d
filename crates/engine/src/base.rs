//! The part of every open index, whatever its kind: its manifest, and the file that queries read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::build::hash;
use stratann_core::format::block::{self, BlockLayout};
use stratann_core::query::{Extent, Loss};
use stratann_core::sieve::Sieve;
use stratann_core::{check, view};
use stratann_kernel::{DType, Metric};
use stratann_storage::data_file::{failed, read_file};
use stratann_storage::remote_memory::RemoteSource;
use stratann_storage::tier::{self, Buffer};
use stratann_storage::{Error, Result};

use crate::exec::scorer::ScorerOptions;
use crate::kinds::facts::KindFacts;
use crate::kinds::known::facts;
use crate::kinds::options::LearnOptions;
#[cfg(feature = "lab")]
use crate::kinds::options::OpenBaselines;
use crate::manifest::Manifest;
use stratann_params::IndexKind;

/// Options with which an index is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Everything that open index and searches may take, in bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// The part of the budget for the block cache.
    pub cache_budget: u64,
    /// Whether the block cache lends what it does not use to other open indexes of the process that lend, and borrows
    /// from them. Each gets its own back when it needs it.
    pub lends_cache: bool,
    /// The part of the budget for resident list codes; they lie on disk as well. `None` for what open index and
    /// searches leave.
    pub head_budget: Option<u64>,
    /// The part of the budget for searches, and their threads: memory that is not given to list codes.
    pub search_reserve: Reserve,
    /// Whether the index learns from its queries, where its kind can.
    pub learning: LearnOptions,
    /// Ranking of the codes of a `gpu-ivf`.
    pub scorer: ScorerOptions,
    /// Files of a `gpu-ivf` for comparisons.
    #[cfg(feature = "lab")]
    pub baselines: OpenBaselines,
}

/// Memory for searches on an index that is about to be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Bytes that searches take with the default number of queries in flight.
    pub bytes: u64,
    /// Bytes with fewer queries in flight, the default where memory is low.
    pub low_memory_bytes: u64,
    /// Threads that search.
    pub threads: usize,
}

/// Source of the bytes that queries read.
pub(crate) enum Source {
    /// A file: blocks, or lists in pages.
    File(Arc<File>),
    /// Memory nodes: there is no file.
    MemoryNodes(Arc<RemoteSource>),
}

/// See the module.
pub(crate) struct Base {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
    /// Number of the manifest.
    pub(crate) number: u64,
    pub(crate) kind: IndexKind,
    pub(crate) metric: Metric,
    pub(crate) dtype: DType,
    pub(crate) block: BlockLayout,
    source: Source,
    /// The path of the file, or the addresses of the memory nodes.
    pub(crate) blocks_path: PathBuf,
    /// Whether it is read past the page cache.
    direct: bool,
    /// The rows that are not deleted; `None` where none is.
    pub(crate) live: Option<Arc<Sieve>>,
}

impl Base {
    /// Constants of the kind.
    pub(crate) fn facts(&self) -> &'static KindFacts {
        facts(self.kind)
    }

    /// Opens the file of this role: all blocks, or those of one server.
    ///
    /// # Errors
    /// A name that this program does not know, numbers that cannot be, a file that is missing or of another length.
    pub(crate) fn open(folder: &Path, number: u64, manifest: Manifest, blocks_role: &str) -> Result<Base> {
        // The process may go to another folder while the index is open.
        let folder = std::path::absolute(folder).map_err(|e| Error::io("opening", folder, &e))?;
        let IndexShape { kind, metric, dtype, block } = shape(&folder, &manifest)?;
        let blocks = open_blocks(&folder, &manifest, blocks_role)?;
        let live = crate::manifest::deletes::read(&folder, &manifest)?;
        Ok(Base {
            folder,
            manifest,
            number,
            kind,
            metric,
            dtype,
            block,
            source: Source::File(Arc::new(blocks.file)),
            blocks_path: blocks.path,
            direct: blocks.direct,
            live,
        })
    }

    /// Opens an index in the memory of memory nodes.
    ///
    /// # Errors
    /// As [`Base::open`].
    pub(crate) fn of_memory(manifest: Manifest, source: Arc<RemoteSource>) -> Result<Base> {
        let folder = PathBuf::from(source.addresses().join(","));
        let IndexShape { kind, metric, dtype, block } = shape(&folder, &manifest)?;
        Ok(Base {
            blocks_path: folder.clone(),
            folder,
            manifest,
            number: 0,
            kind,
            metric,
            dtype,
            block,
            source: Source::MemoryNodes(source),
            direct: false,
            live: None,
        })
    }

    /// The file that queries read.
    ///
    /// # Errors
    /// An index in memory nodes has none.
    pub(crate) fn blocks_file(&self) -> Result<&Arc<File>> {
        match &self.source {
            Source::File(file) => Ok(file),
            Source::MemoryNodes(_) => Err(Error::bad_input(format!(
                "{} are memory nodes, and this reads a file; name the folder that was loaded into them",
                self.blocks_path.display()
            ))),
        }
    }

    /// The memory nodes that have what queries read.
    pub(crate) fn memory_nodes(&self) -> Option<&Arc<RemoteSource>> {
        match &self.source {
            Source::File(_) => None,
            Source::MemoryNodes(nodes) => Some(nodes),
        }
    }

    /// The part of the index that queries of any kind see.
    pub(crate) fn view(&self) -> view::Base<'_> {
        view::Base {
            metric: self.metric,
            dtype: self.dtype,
            dim: self.manifest.dim,
            nodes: self.manifest.rows as u32,
            here: None,
            sieve: self.live.as_deref(),
            is_filtered: false,
        }
    }

    /// Whether a row is not deleted.
    pub(crate) fn is_live(&self, id: u32) -> bool {
        self.live.as_ref().is_none_or(|live| live.has(id))
    }

    /// Bytes of a vector.
    pub(crate) fn row_bytes(&self) -> usize {
        self.block.vector_bytes
    }

    /// The seed that the index was built with.
    pub(crate) fn seed(&self) -> u64 {
        self.manifest.seed()
    }

    /// Refuses a query of the wrong length.
    pub(crate) fn check_query(&self, query: &[u8]) -> Result<()> {
        let wanted = self.row_bytes();
        if query.len() == wanted {
            return Ok(());
        }
        Err(Error::bad_input(format!("the query has {} bytes, the index has {wanted}", query.len())))
    }

    /// Replaces `out` by the bytes of an extent, read past any cache and not verified. Store 0 has the blocks; those
    /// after it are `stores`.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn read_extent(
        &self,
        stores: &[Arc<File>],
        at: Extent,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), Loss> {
        let blocks = match &self.source {
            Source::File(file) => file,
            Source::MemoryNodes(nodes) => return nodes.read_extent(at, out),
        };
        let file = match usize::from(at.store.0).checked_sub(1) {
            None => blocks,
            Some(store) => stores.get(store).ok_or(Loss::Failed)?,
        };
        let mut buffer = Buffer::new(at.pages() as usize * stratann_core::PAGE);
        let first = at.first_page() * stratann_core::PAGE as u64;
        match file.read_exact_at(buffer.bytes_mut(), first) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Err(Loss::Short),
            Err(_) => return Err(Loss::Failed),
            Ok(()) => {}
        }
        let skip = (at.offset - first) as usize;
        out.clear();
        out.extend_from_slice(&buffer.bytes()[skip..skip + at.bytes as usize]);
        Ok(())
    }

    /// One block, read past any cache and verified.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn read_block(&self, number: u32) -> std::result::Result<Buffer, Loss> {
        let mut buffer = Buffer::new(self.block.block_bytes);
        let offset = u64::from(number) * self.block.block_bytes as u64;
        let file = self.blocks_file().map_err(|_| Loss::Failed)?;
        match file.read_exact_at(buffer.bytes_mut(), offset) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Loss::Short),
            Err(_) => Err(Loss::Failed),
            Ok(()) if block::verify(&self.block, number, buffer.bytes()).is_err() => Err(Loss::Damaged),
            Ok(()) => Ok(buffer),
        }
    }

    /// The name of what reads go through: `io_uring` or `pread`, and whether the file system allows direct reads.
    pub(crate) fn backend_name(&self, tier: &str) -> String {
        if self.memory_nodes().is_some() {
            return tier.to_string();
        }
        if self.direct { format!("{tier}, O_DIRECT") } else { format!("{tier}, buffered") }
    }
}

/// Reads the file of a role, checked against the manifest. Returns its path, too.
pub(crate) fn read_role(folder: &Path, manifest: &Manifest, role: &str) -> Result<(PathBuf, Vec<u8>)> {
    let (name, entry) = manifest.file(role)?;
    Ok((folder.join(name), read_file(folder, name, entry)?))
}

/// Reads the file of a role and decodes it. Its bytes are free again when this returns.
///
/// # Errors
/// A file that is damaged, cannot be read, or whose content `decode` refuses.
pub(crate) fn decode_role<T>(
    folder: &Path,
    manifest: &Manifest,
    role: &str,
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T> {
    let (path, bytes) = read_role(folder, manifest, role)?;
    decode(&bytes).ok_or_else(|| crate::files::senseless(&path))
}

/// Properties of an index that all of its files follow from.
pub(crate) struct IndexShape {
    pub(crate) kind: IndexKind,
    pub(crate) metric: Metric,
    pub(crate) dtype: DType,
    pub(crate) block: BlockLayout,
}

/// Kind, metric, element type and shape of the blocks, from the manifest.
///
/// # Errors
/// A name that this program does not know, numbers that cannot be.
pub(crate) fn shape(folder: &Path, manifest: &Manifest) -> Result<IndexShape> {
    let unknown = |what: &str, name: &str| {
        Error::bad_input(format!("{}: unknown {what} {name:?}; use a newer stratann", folder.display()))
    };
    let metric = manifest.metric().ok_or_else(|| unknown("metric", &manifest.metric))?;
    let dtype = manifest.dtype().ok_or_else(|| unknown("dtype", &manifest.dtype))?;
    let kind = manifest.kind().ok_or_else(|| unknown("kind", &manifest.kind))?;
    let block = BlockLayout {
        block_bytes: manifest.blocks.bytes,
        vector_bytes: manifest.dim.saturating_mul(dtype.size()),
        id_bytes: manifest.blocks.id_bytes,
        norms: metric == Metric::Cosine,
        adjacency: facts(kind).has_adjacency_in_blocks,
        code_bytes: manifest.blocks.code_bytes,
        checksum_seed: manifest.blocks.checksum_seed,
    };
    check_shape(folder, manifest, kind, &block)?;
    Ok(IndexShape { kind, metric, dtype, block })
}

fn check_shape(folder: &Path, manifest: &Manifest, kind: IndexKind, block: &BlockLayout) -> Result<()> {
    let sane = manifest.rows > 0
        && manifest.rows < u64::from(u32::MAX)
        && manifest.dim > 0
        && manifest.dim <= stratann_kernel::distance::MAX_DIM
        && block.block_bytes > 0
        && block.block_bytes.is_multiple_of(stratann_core::PAGE)
        && block.block_bytes <= 1 << 20
        && (block.id_bytes == 4 || block.id_bytes == 8)
        && (block.code_bytes == 0
            || (block.adjacency && block.code_bytes <= stratann_kernel::distance::MAX_DIM))
        && (!facts(kind).has_nodes_in_blocks || block.node_bytes() <= block.payload_bytes());
    if sane {
        Ok(())
    } else {
        Err(Error::corrupt(format!(
            "{}: the manifest's numbers cannot be; build the index again",
            folder.display()
        )))
    }
}

/// The blocks of an index, as far as the manifest alone describes them.
pub(crate) struct PlainBlocks {
    base: view::Base<'static>,
    pub(crate) layout: BlockLayout,
    count: u32,
}

impl PlainBlocks {
    /// `None` when the numbers of the manifest are inconsistent.
    pub(crate) fn new(manifest: &Manifest) -> Option<PlainBlocks> {
        let (dtype, metric, kind) = (manifest.dtype()?, manifest.metric()?, manifest.kind()?);
        let layout = BlockLayout {
            block_bytes: manifest.blocks.bytes,
            vector_bytes: manifest.dim.checked_mul(dtype.size())?,
            id_bytes: manifest.blocks.id_bytes,
            norms: metric == Metric::Cosine,
            adjacency: facts(kind).has_adjacency_in_blocks,
            code_bytes: manifest.blocks.code_bytes,
            checksum_seed: manifest.blocks.checksum_seed,
        };
        let sane = manifest.dim <= stratann_kernel::distance::MAX_DIM
            && layout.block_bytes >= stratann_core::PAGE
            && layout.block_bytes <= 1 << 20
            && (layout.id_bytes == 4 || layout.id_bytes == 8)
            && layout.code_bytes <= layout.block_bytes;
        let nodes = u32::try_from(manifest.rows).ok()?;
        let base = view::Base::whole((metric, dtype), manifest.dim, nodes);
        let nodes_max = || layout.payload_bytes() / layout.node_bytes();
        let fits = || {
            !facts(kind).has_nodes_in_blocks
                || nodes <= manifest.blocks.count.saturating_mul(nodes_max() as u32)
        };
        (sane && fits()).then_some(PlainBlocks { base, layout, count: manifest.blocks.count })
    }

    /// Whether a file of this length may be what is left of these blocks. A check takes memory for each block that the
    /// manifest names.
    pub(crate) fn may_be_in(&self, file_bytes: u64) -> bool {
        const MISSING_MAX: u64 = 1 << 20;
        u64::from(self.count) <= file_bytes / self.layout.block_bytes as u64 + MISSING_MAX
    }

    /// The blocks as they are checked, one by one.
    pub(crate) fn checked(&self) -> check::Blocks<'_> {
        check::Blocks { base: self.base, layout: &self.layout, count: self.count, links: None }
    }
}

/// Draws members of an index, `sample` of them or half of all where that is less; equal seeds draw the same ones.
pub(crate) fn draw(rows: u32, sample: usize, seed: u64) -> Vec<u32> {
    draw_of(0..rows, rows, sample, seed)
}

/// The same of `rows` members.
pub(crate) fn draw_of(members: impl Iterator<Item = u32>, rows: u32, sample: usize, seed: u64) -> Vec<u32> {
    let mut drawn: Vec<(u64, u32)> = members.map(|id| (hash(seed, 13, u64::from(id)), id)).collect();
    drawn.sort_unstable();
    drawn.truncate(sample.min(rows as usize / 2));
    drawn.into_iter().map(|d| d.1).collect()
}

struct BlocksFile {
    path: PathBuf,
    file: File,
    /// Whether reads bypass the page cache.
    direct: bool,
}

fn open_blocks(folder: &Path, manifest: &Manifest, role: &str) -> Result<BlocksFile> {
    let (name, entry) = manifest.file(role)?;
    let path = folder.join(name);
    let (file, direct) = tier::open_direct(&path).map_err(|e| failed("opening", &path, &e))?;
    let length = file.metadata().map_err(|e| Error::io("opening", &path, &e))?.len();
    // A server's file holds as much as its placement says, which the caller knows.
    let expected = match &manifest.spread {
        Some(_) => entry.bytes,
        None => u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64,
    };
    if length != entry.bytes || length != expected {
        return Err(Error::corrupt(format!(
            "{} has {length} bytes, the manifest says {expected}; restore it or build the index again",
            path.display()
        )));
    }
    Ok(BlocksFile { path, file, direct })
}

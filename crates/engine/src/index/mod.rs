//! An index that is open for search: what lies in RAM, and the file of blocks.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratann_core::format::block::{self, BlockLayout};
use stratann_core::format::block_map::BlockMap;
use stratann_core::plan::{Codes, GraphView, IndexView};
use stratann_core::query::Loss;
use stratann_core::query::wire::Carry;
use stratann_core::route::HeadGraph;
use stratann_kernel::codes::Codebook;
use stratann_kernel::{DType, Metric};

use crate::budget::{Account, release_freed, size, size_up};
use crate::cache::ExtentCache;
use crate::driver::SharedReads;
use crate::kinds::hybrid_ivf::learning::{self, Ground, LearnOptions, Learning};
use crate::kinds::hybrid_ivf::lists::{CHOICE_BYTES, ClusterParts, ListReader};
use crate::kinds::hybrid_ivf::residency::{Residency, Room, Worth};
use crate::manifest::{Manifest, read_file, read_resident};
use crate::search::Reserve;
use crate::spread::Shard;
use crate::tier::{Buffer, Resident};
use crate::{Error, Result, files, tier};

/// What `disk-graph` keeps in RAM.
pub(crate) struct GraphParts {
    pub(crate) codebook: Codebook,
    pub(crate) codes: HeldCodes,
    pub(crate) map: BlockMap,
    pub(crate) head: HeadGraph,
}

/// The codes in RAM.
pub(crate) enum HeldCodes {
    /// Of all nodes.
    All(Resident),
    /// Of the head graph's nodes; blocks carry the others.
    Head(Vec<u8>),
}

impl HeldCodes {
    fn view(&self) -> Codes<'_> {
        match self {
            HeldCodes::All(codes) => Codes::All(codes),
            HeldCodes::Head(codes) => Codes::Head(codes),
        }
    }
}

/// How an index is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Everything that open index and searches may take, in bytes; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Of it, what the block cache may take.
    pub cache_budget: u64,
    /// Of it, what codes of a `hybrid-ivf` may take in RAM; they lie on disk as well. `None` for what open index and searches leave.
    pub head_budget: Option<u64>,
    /// Of it, what searches will take, and on how many threads: room that is not given to codes.
    pub search_reserve: Reserve,
    /// Whether a `hybrid-ivf` learns from its queries.
    pub learning: LearnOptions,
}

/// An open index. Searches may run on it from any number of threads.
pub struct Index {
    pub(crate) folder: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) number: u64,
    pub(crate) metric: Metric,
    pub(crate) dtype: DType,
    pub(crate) block: BlockLayout,
    pub(crate) graph: Option<GraphParts>,
    pub(crate) clusters: Option<Arc<ClusterParts>>,
    // What lies in RAM of the lists; on an index that learns, versions know.
    pub(crate) residency: Arc<Residency>,
    pub(crate) learning: Option<Learning>,
    // Whether RAM is so short that not all codes come into it.
    pub(crate) is_tight: bool,
    pub(crate) warnings: Vec<String>,
    pub(crate) blocks_path: PathBuf,
    pub(crate) blocks_file: Arc<File>,
    pub(crate) direct: bool,
    pub(crate) cache: Option<ExtentCache>,
    // Equal reads of all searches are made once.
    pub(crate) shared_reads: SharedReads,
    pub(crate) ram_budget: Option<u64>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({}, {} rows)", self.folder.display(), self.manifest.rows)
    }
}

impl Index {
    /// Opens the newest version in `folder`. All files that lie in RAM are read and checked.
    ///
    /// # Errors
    /// No index, a newer format, a damaged or missing file, a budget too small.
    pub fn open(folder: &Path, options: OpenOptions) -> Result<Index> {
        let (number, manifest) = Manifest::read(folder)?;
        Index::from_manifest(folder, number, manifest, options)
    }

    /// Opens what a manifest describes, published or not.
    pub(crate) fn from_manifest(
        folder: &Path,
        number: u64,
        manifest: Manifest,
        options: OpenOptions,
    ) -> Result<Index> {
        if let Some(cluster) = &manifest.cluster {
            return Err(Error::bad_input(format!(
                "{} is spread over {} servers, none of which holds all of its blocks; search the index that it was made from, \
                 or run its servers",
                folder.display(),
                cluster.servers
            )));
        }
        let role = if manifest.clusters.is_some() { files::LISTS } else { files::BLOCKS };
        Index::from_role(folder, number, manifest, role, options)
    }

    /// Opens what a manifest describes, with its blocks in the file of this role: all of them, or those of one server.
    pub(crate) fn from_role(
        folder: &Path,
        number: u64,
        manifest: Manifest,
        blocks_role: &str,
        options: OpenOptions,
    ) -> Result<Index> {
        let (metric, dtype, block) = shape(folder, &manifest)?;
        let lists = block.adjacency;
        Account::planned(&manifest, options.cache_budget).check(options.ram_budget, "open this index")?;
        let (blocks_path, blocks_file, direct) = open_blocks(folder, &manifest, blocks_role)?;
        let graph = if lists { Some(load_graph(folder, &manifest)?) } else { None };
        let clusters = match manifest.clusters {
            Some(_) => Some(Arc::new(ClusterParts::load(folder, &manifest, &block)?)),
            None => None,
        };
        let blocks_file = Arc::new(blocks_file);
        let (mut learning, mut warnings) = (None, Vec::new());
        if let Some(parts) = &clusters {
            let ground = Ground {
                parts: parts.clone(),
                file: blocks_file.clone(),
                lists: blocks_path.clone(),
                metric,
                dtype,
                seed: manifest.build.get("seed").and_then(|s| s.as_u64()).unwrap_or(1),
                path: folder.join(learning::file::NAME),
                build_id: manifest.build_id.clone(),
            };
            let (begun, warning) = Learning::begin(ground, options.learning);
            learning = Some(begun);
            warnings.extend(warning);
        }
        let mut index = Index {
            folder: folder.to_path_buf(),
            number,
            metric,
            dtype,
            block,
            graph,
            clusters,
            residency: Arc::default(),
            learning,
            is_tight: false,
            warnings,
            blocks_path,
            blocks_file,
            direct,
            cache: match manifest.clusters {
                Some(_) => None,
                None => block_cache(&manifest, options.cache_budget),
            },
            shared_reads: SharedReads::default(),
            ram_budget: options.ram_budget,
            manifest,
        };
        // What reading the files took is not wanted any more.
        release_freed();
        index.yield_learning(&options);
        index.keep_lists(&options)?;
        Ok(index)
    }

    /// Learning is a help that a search can do without: it does not begin where the budget has no room for it.
    fn yield_learning(&mut self, options: &OpenOptions) {
        let (Some(budget), Some(learning)) = (options.ram_budget, &self.learning) else { return };
        let Reserve { tight_bytes, threads, .. } = options.search_reserve;
        let least = self.account().total() + learning.bytes(threads.max(1)) + tight_bytes;
        if !learning.is_on() || least <= budget {
            return;
        }
        self.warnings.push(format!(
            "the RAM budget of {} has no room for learning from queries, which would take {}: give --ram-budget {} or more, or --no-learning",
            size(budget),
            size(learning.bytes(threads.max(1))),
            size_up(least)
        ));
        if let Some(learning) = &mut self.learning {
            learning.stop();
        }
    }

    /// Brings codes of clusters into RAM, as many as the budget allows, and then vectors; without a budget all codes.
    fn keep_lists(&mut self, options: &OpenOptions) -> Result<()> {
        let Reserve { bytes, tight_bytes, threads } = options.search_reserve;
        let learning = self.learning.as_ref().map_or(0, |l| l.bytes(threads.max(1)));
        let taken = self.account().total() + learning;
        let left_by =
            |reserve: u64| options.ram_budget.map_or(u64::MAX, |b| b.saturating_sub(taken + reserve));
        self.is_tight = self.clusters.as_ref().is_some_and(|parts| parts.all_codes_bytes() > left_by(bytes));
        let left = left_by(if self.is_tight { tight_bytes } else { bytes });
        let head_budget = options.head_budget.unwrap_or(u64::MAX).min(left);
        // Vectors come into RAM only when there is known to be more of it than codes need.
        let is_automatic = options.ram_budget.is_some() && options.head_budget.is_none();
        self.bring(head_budget, if is_automatic { left } else { 0 })
    }

    /// Brings codes of clusters into RAM that take no more than `head_budget`, and vectors, both together no more than `record_budget`, instead of those that are
    /// there.
    pub(crate) fn bring(&mut self, head_budget: u64, record_budget: u64) -> Result<()> {
        let (Some(parts), Some(plan)) = (&self.clusters, &self.manifest.plan) else { return Ok(()) };
        let model = plan.model(&parts.shape, parts.read_max());
        let newest = self.learning.as_ref().map(Learning::newest);
        let visits = newest.as_ref().map_or(&[][..], |v| &v.visits);
        let mut reader = ListReader::new(parts, &self.blocks_file, &self.blocks_path);
        let room = Room { heads: head_budget, records: record_budget };
        let residency = Arc::new(Residency::load(&mut reader, room, &Worth { model: &model, visits })?);
        match self.learning.as_mut().filter(|l| l.is_on()) {
            Some(learning) => learning.hold(residency, room, model),
            None => self.residency = residency,
        }
        Ok(())
    }

    /// Replaces the block cache by one of `budget_bytes`; 0 takes it away.
    pub fn set_cache_budget(&mut self, budget_bytes: u64) {
        self.cache = block_cache(&self.manifest, budget_bytes);
    }

    /// What the queries see.
    pub fn view(&self) -> IndexView<'_> {
        IndexView {
            metric: self.metric,
            dtype: self.dtype,
            dim: self.manifest.dim,
            nodes: self.manifest.rows as u32,
            blocks: self.manifest.blocks.count,
            block: self.block,
            graph: self.graph.as_ref().map(|g| GraphView {
                codebook: &g.codebook,
                codes: g.codes.view(),
                map: &g.map,
                code_error: self.manifest.code_error,
                head: &g.head,
            }),
            clusters: self.clusters.as_ref().map(|c| c.view(&self.residency)),
            here: None,
        }
    }

    /// What batons of this index say of their candidates, when this was asked for.
    ///
    /// # Errors
    /// Ids alone, where blocks carry the codes: whoever receives them has no codes to compute distances from.
    pub fn carry(&self, asked: Option<Carry>) -> Result<Carry> {
        match (self.view().rescores(), asked) {
            (true, asked) => Ok(asked.unwrap_or_default()),
            (false, None | Some(Carry::Distances)) => Ok(Carry::Distances),
            (false, Some(Carry::Ids)) => Err(Error::bad_input(format!(
                "{} keeps its codes on disk, so no server can compute distances that are left out; use --carry distances, or build with \
                 --codes ram",
                self.folder.display()
            ))),
        }
    }

    /// What the index was built as.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The number of the manifest that was opened.
    pub fn version(&self) -> u64 {
        self.number
    }

    /// What was noticed while it was opened that does no harm: to be told once.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The index folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The clusters of the vectors with these ids; reads the whole index.
    ///
    /// # Errors
    /// An index without clusters; a file that cannot be read, or is damaged.
    pub fn clusters_of(&self, ids: &HashSet<u64>) -> Result<HashMap<u64, u32>> {
        let parts = self.clusters.as_ref().ok_or_else(|| {
            Error::bad_input(format!(
                "{} is a {} and has no clusters",
                self.folder.display(),
                self.manifest.kind
            ))
        })?;
        parts.clusters_of(&self.blocks_file, &self.blocks_path, ids)
    }

    /// One block, read past any cache and verified: for those who look at an index rather than search it.
    ///
    /// # Errors
    /// What became of it instead.
    pub fn read_block(&self, number: u32) -> std::result::Result<Buffer, Loss> {
        let mut buffer = Buffer::new(self.block.block_bytes);
        let offset = u64::from(number) * self.block.block_bytes as u64;
        match self.blocks_file.read_exact_at(buffer.bytes_mut(), offset) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(Loss::Short),
            Err(_) => Err(Loss::Failed),
            Ok(()) if block::verify(&self.block, number, buffer.bytes()).is_err() => Err(Loss::Damaged),
            Ok(()) => Ok(buffer),
        }
    }

    /// What lies in RAM of the lists now.
    pub(crate) fn lists_in_ram(&self) -> Arc<Residency> {
        let newest = self.learning.as_ref().map(Learning::newest);
        newest.and_then(|v| v.residency.clone()).unwrap_or_else(|| self.residency.clone())
    }

    /// Bytes by component, of the open index alone: searches add their buffers, see [`Index::search_account`].
    pub fn account(&self) -> Account {
        let mut account = Account::new();
        if let Some(graph) = &self.graph {
            match &graph.codes {
                HeldCodes::All(codes) => account.add("codes", codes.len() as u64),
                HeldCodes::Head(codes) => account.add("head codes", codes.len() as u64),
            }
            account.add("head graph", graph.head.bytes() as u64);
            account.add("block map", graph.map.bytes() as u64);
            account.add("codebook", files::codebook_bytes(&graph.codebook));
        }
        if let Some(clusters) = &self.clusters {
            clusters.account(&mut account);
            self.lists_in_ram().account(&mut account);
        }
        if let Some(cache) = &self.cache {
            account.add("block cache", cache.used_bytes());
        }
        account
    }

    /// What reads of blocks go through: `io_uring`, `pread`, with `buffered` where the file system refuses direct reads.
    pub(crate) fn backend_name(&self, tier: &str) -> String {
        if self.direct { format!("{tier}, O_DIRECT") } else { format!("{tier}, buffered") }
    }
}

impl Account {
    /// What opening will take, from the manifest alone.
    pub fn planned(manifest: &Manifest, cache_budget: u64) -> Account {
        let mut account = Account::new();
        for (name, entry) in &manifest.files {
            match files::role(name) {
                Some(files::CODES) => account.add("codes", entry.bytes),
                Some(files::HEAD_CODES) => account.add("head codes", entry.bytes),
                Some(files::HEAD) => account.add("head graph", entry.bytes),
                Some(files::CODEBOOK) => account.add("codebook", entry.bytes),
                Some(files::NAV) => account.add("navigation graph", entry.bytes),
                Some(files::CENTROIDS) => account.add("centroids", entry.bytes),
                Some(files::DIRECTORY) => account.add("directory of lists", entry.bytes + CHOICE_BYTES),
                Some(files::SUBLISTS) => account.add("lists of divided clusters", entry.bytes),
                Some(files::MAP) => account.add("block map", manifest.rows / 7 + 64),
                Some(files::PLACEMENT) => {
                    account.add("placement", Shard::placement_bytes(manifest.blocks.count))
                }
                _ => {}
            }
        }
        if cache_budget > 0 {
            account.add("block cache", cache_budget);
        }
        account
    }
}

/// Metric, element type and shape of the blocks, as the manifest tells.
///
/// # Errors
/// A name that this program does not know, numbers that cannot be.
pub(crate) fn shape(folder: &Path, manifest: &Manifest) -> Result<(Metric, DType, BlockLayout)> {
    let unknown = |what: &str, name: &str| {
        Error::bad_input(format!("{}: unknown {what} {name:?}; use a newer stratann", folder.display()))
    };
    let metric = manifest.metric().ok_or_else(|| unknown("metric", &manifest.metric))?;
    let dtype = manifest.dtype().ok_or_else(|| unknown("dtype", &manifest.dtype))?;
    let lists = match manifest.kind.as_str() {
        "disk-graph" => true,
        "flat" | "hybrid-ivf" => false,
        other => return Err(unknown("kind", other)),
    };
    let block = BlockLayout {
        block_bytes: manifest.blocks.bytes,
        vector_bytes: manifest.dim * dtype.size(),
        id_bytes: manifest.blocks.id_bytes,
        norms: metric == Metric::Cosine,
        adjacency: lists,
        code_bytes: manifest.blocks.code_bytes,
    };
    check_shape(folder, manifest, &block)?;
    Ok((metric, dtype, block))
}

fn block_cache(manifest: &Manifest, budget_bytes: u64) -> Option<ExtentCache> {
    ExtentCache::of_blocks(budget_bytes, manifest.blocks.count, manifest.blocks.bytes as u32)
}

fn check_shape(folder: &Path, manifest: &Manifest, block: &BlockLayout) -> Result<()> {
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
        && (manifest.clusters.is_some() || block.node_bytes() <= block.payload_bytes());
    if sane {
        Ok(())
    } else {
        Err(Error::corrupt(format!(
            "{}: the manifest's numbers cannot be; build the index again",
            folder.display()
        )))
    }
}

fn open_blocks(folder: &Path, manifest: &Manifest, role: &str) -> Result<(PathBuf, File, bool)> {
    let (name, entry) = files::find(manifest, role)?;
    let path = folder.join(name);
    let (file, direct) = tier::open_direct(&path).map_err(|e| Error::io("opening", &path, &e))?;
    let length = file.metadata().map_err(|e| Error::io("opening", &path, &e))?.len();
    // How many blocks a server holds its placement says, which the caller knows.
    let expected = match &manifest.cluster {
        Some(_) => entry.bytes,
        None => u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64,
    };
    if length != entry.bytes || length != expected {
        return Err(Error::corrupt(format!(
            "{} has {length} bytes, the manifest says {expected}; restore it or build the index again",
            path.display()
        )));
    }
    Ok((path, file, direct))
}

fn load_graph(folder: &Path, manifest: &Manifest) -> Result<GraphParts> {
    let read = |role: &str| -> Result<(PathBuf, Vec<u8>)> {
        let (name, entry) = files::find(manifest, role)?;
        Ok((folder.join(name), read_file(folder, name, entry)?))
    };
    let (path, bytes) = read(files::CODEBOOK)?;
    let codebook = files::decode_codebook(&bytes)
        .filter(|c| c.dim == manifest.dim)
        .ok_or_else(|| files::senseless(&path))?;
    let (path, bytes) = read(files::MAP)?;
    let map = files::decode_map(&bytes)
        .filter(|m| u64::from(m.nodes()) == manifest.rows && m.blocks() == manifest.blocks.count)
        .ok_or_else(|| files::senseless(&path))?;
    let (path, bytes) = read(files::HEAD)?;
    let head = files::decode_head(&bytes)
        .filter(|h| h.is_consistent(manifest.rows as u32))
        .ok_or_else(|| files::senseless(&path))?;
    let codes = load_codes(folder, manifest, &codebook, &head)?;
    Ok(GraphParts { codebook, codes, map, head })
}

fn load_codes(
    folder: &Path,
    manifest: &Manifest,
    codebook: &Codebook,
    head: &HeadGraph,
) -> Result<HeldCodes> {
    let carried = manifest.blocks.code_bytes > 0;
    let (name, entry) = files::find(manifest, if carried { files::HEAD_CODES } else { files::CODES })?;
    let nodes = if carried { head.ids.len() as u64 } else { manifest.rows };
    let fits = !carried || manifest.blocks.code_bytes == codebook.code_bytes();
    if !fits || entry.bytes != nodes * codebook.code_bytes() as u64 {
        return Err(files::senseless(&folder.join(name)));
    }
    Ok(match carried {
        true => HeldCodes::Head(read_file(folder, name, entry)?),
        false => HeldCodes::All(read_resident(folder, name, entry)?),
    })
}

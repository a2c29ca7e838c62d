//! What an open `gpu-ivf` holds in RAM.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use stratann_core::PAGE;
use stratann_core::format::block::BlockLayout;
use stratann_core::format::block_map::BlockMap;
use stratann_core::format::posting_file::PostingLayout;
use stratann_core::format::posting_lists::PostingLists;
use stratann_core::plan::gpu_ivf::{Baselines, View};
use stratann_core::route::NavGraph;
use stratann_kernel::codes::Codebook;
use stratann_storage::budget::{Account, release_freed};
use stratann_storage::data_file::{failed, read_resident};
use stratann_storage::tier::{self, Resident};
use stratann_storage::{Error, Result};

use super::baseline::{self, Baseline, OpenBaselines};
use super::calibration;
use super::facts::{GpuFacts, GpuSection};
use crate::base::{Base, OpenOptions, decode_role, read_role};
use crate::files;
use crate::kinds::effort::ExactCost;
use crate::manifest::Manifest;
use crate::recall::curve::Grid;
use crate::scorer::{self, CodeFile, OpenScorer, Scorer};

/// See the module.
pub(crate) struct GpuIndex {
    pub(crate) facts: GpuFacts,
    pub(crate) codebook: Codebook,
    codes: Arc<Resident>,
    codes_from: u32,
    scorer: Box<dyn Scorer>,
    pub(crate) map: BlockMap,
    pub(crate) lists: PostingLists,
    centroids: Vec<u8>,
    nav: NavGraph,
    code_error: f32,
    baselines: Option<BaselineFiles>,
}

/// The roles of the files that queries read besides the blocks, in the order of their stores.
pub(crate) const STORES: [&str; 3] = [files::LIST_VECTORS, files::LIST_CODES, files::ROW_BLOCKS];

/// Files of other systems, open.
struct BaselineFiles {
    list_pages: Vec<u32>,
    list: PostingLayout,
    code_list_pages: Vec<u32>,
    code_list: PostingLayout,
    resident: Resident,
    places: Vec<u32>,
    row_block: BlockLayout,
    stores: Vec<Arc<File>>,
    list_bytes_max: usize,
}

impl Manifest {
    /// The section of a `gpu-ivf`.
    pub(crate) fn gpu(&self, folder: &Path) -> Result<&GpuSection> {
        self.section.gpu().ok_or_else(|| {
            Error::corrupt(format!(
                "{}: the manifest says nothing of the lists; build again",
                folder.display()
            ))
        })
    }
}

impl GpuIndex {
    /// Reads and checks the files in RAM.
    ///
    /// # Errors
    /// A file that is missing or damaged; baselines that were asked for and not built.
    pub(crate) fn open(base: &Base, options: &OpenOptions, warnings: &mut Vec<String>) -> Result<GpuIndex> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let facts = manifest.gpu(folder)?.facts.clone();
        let (rows, lists) = (manifest.rows as u32, facts.lists());
        let codebook = decode_role(folder, manifest, files::CODEBOOK, |bytes| {
            files::decode_codebook(bytes).filter(|c| c.dim == manifest.dim)
        })?;
        let map = decode_role(folder, manifest, files::MAP, |bytes| {
            files::decode_map(bytes).filter(|m| m.nodes() == rows && m.blocks() == manifest.blocks.count)
        })?;
        let postings = decode_role(folder, manifest, files::POSTINGS, |bytes| {
            files::decode_postings(bytes).filter(|p| p.count() == lists && p.is_consistent(rows))
        })?;
        let nav = decode_role(folder, manifest, files::NAV, |bytes| {
            files::decode_nav(bytes).filter(|n| n.nodes() == lists && n.is_consistent(lists, 0, 0))
        })?;
        // What was read for the tables is free again before the largest of them come.
        release_freed();
        let (path, centroids) = read_role(folder, manifest, files::CENTROIDS)?;
        let components = manifest.dim as u64 * u64::from(lists);
        if ![2 * components, 4 * components].contains(&(centroids.len() as u64)) {
            return Err(files::senseless(&path));
        }
        let (name, entry) = manifest.file(files::CODES)?;
        if entry.bytes != manifest.rows * codebook.code_bytes() as u64 {
            return Err(files::senseless(&folder.join(name)));
        }
        let file = CodeFile { folder, name, entry };
        let OpenScorer { scorer, codes, codes_from } =
            scorer::open(&file, &codebook, &options.scorer, warnings)?;
        let code_error = manifest.code_error;
        let mut index = GpuIndex {
            facts,
            codebook,
            codes,
            codes_from,
            scorer,
            map,
            lists: postings,
            centroids,
            nav,
            code_error,
            baselines: None,
        };
        if options.baselines != OpenBaselines::No {
            index.baselines = Some(BaselineFiles::open(base, &index, options.baselines)?);
        }
        Ok(index)
    }

    /// What queries see.
    pub(crate) fn view<'a>(&'a self, base: &'a Base) -> View<'a> {
        View {
            block: &base.block,
            blocks: base.manifest.blocks.count,
            map: &self.map,
            codebook: &self.codebook,
            codes: &self.codes,
            codes_from: self.codes_from,
            lists: &self.lists,
            centroids: &self.centroids,
            nav: &self.nav,
            code_error: self.code_error,
            vector_norm: self.facts.vector_norm,
            baselines: self.baselines.as_ref().map(|own| Baselines {
                list_pages: &own.list_pages,
                list: own.list,
                code_list_pages: &own.code_list_pages,
                code_list: own.code_list,
                resident: &own.resident,
                places: &own.places,
                row_block: &own.row_block,
                rows_per_block: self.facts.vectors_per_block,
            }),
        }
    }

    /// What ranks codes.
    pub(crate) fn scorer(&self) -> &dyn Scorer {
        &*self.scorer
    }

    /// Files that queries read besides the blocks, in the order of their stores.
    pub(crate) fn stores(&self) -> &[Arc<File>] {
        self.baselines.as_ref().map_or(&[], |own| &own.stores)
    }

    /// Whether files of other systems are open.
    pub(crate) fn has_baselines(&self) -> bool {
        self.baselines.is_some()
    }

    /// Ways to search besides the usual one that calibration measures.
    pub(crate) fn families(&self) -> &'static [&'static str] {
        if self.has_baselines() { &baseline::FAMILIES } else { &baseline::USUAL_FAMILIES }
    }

    /// The settings that calibration measures for k results.
    pub(crate) fn grid(&self, k: u32, family: Option<&str>) -> Grid {
        calibration::grid(k, self.facts.lists(), family, self.has_baselines())
    }

    /// Refuses a baseline whose files are not open.
    pub(crate) fn check_open(&self, baseline: Baseline) -> Result<()> {
        let is_in_ram = self.baselines.as_ref().is_some_and(|own| !own.resident.is_empty());
        let (is_open, wanted) = match baseline.is_resident() {
            true => (is_in_ram, "ram"),
            false => (self.has_baselines() || !baseline.needs_files(), "disk"),
        };
        if is_open {
            return Ok(());
        }
        Err(Error::bad_input(format!(
            "baseline {} searches lists that are not open; open the index with baselines=\"{wanted}\"",
            baseline.name()
        )))
    }

    /// Bytes of the longest list that is read.
    pub(crate) fn list_bytes_max(&self) -> usize {
        self.baselines.as_ref().map_or(0, |own| own.list_bytes_max)
    }

    /// What a query that searches everything goes through.
    pub(crate) fn exact_cost(&self, base: &Base) -> ExactCost {
        let count = u64::from(base.manifest.blocks.count);
        let bytes = count * base.block.block_bytes as u64;
        ExactCost { count, unit: "blocks", bytes, vector_bytes_max: 0 }
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("codes", self.codes.len() as u64);
        if let Some(gpu) = self.scorer.report().gpu {
            account.add("copies to and from the GPU", gpu.host_staging_bytes);
        }
        account.add("centroids", self.centroids.len() as u64);
        account.add("navigation graph", self.nav.bytes() as u64);
        account.add("ids of lists", self.lists.bytes() as u64);
        account.add("block map", self.map.bytes() as u64);
        account.add("codebook", files::codebook_bytes(&self.codebook));
        if let Some(own) = &self.baselines {
            account.add("lists in RAM", own.resident.len() as u64);
            let tables = own.list_pages.len() + own.code_list_pages.len() + own.places.len();
            account.add("tables of baselines", 4 * tables as u64);
        }
    }
}

impl BaselineFiles {
    fn open(base: &Base, index: &GpuIndex, wanted: OpenBaselines) -> Result<BaselineFiles> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        if !index.facts.baselines {
            return Err(Error::bad_input(format!(
                "{} has no files to search as other systems do; build it with --baselines",
                folder.display()
            )));
        }
        let (list, code_list) = layouts(&base.block, index.codebook.code_bytes());
        let (mut list_pages, mut code_list_pages) = (vec![0u32], vec![0u32]);
        let mut ids = Vec::new();
        let pages = |bytes: usize| (bytes / PAGE) as u32;
        for number in 0..index.lists.count() {
            ids.clear();
            let _ = index.lists.replicas_of(number, &mut ids);
            let members = index.lists.own(number).1 as usize + ids.len();
            list_pages.push(list_pages.last().unwrap_or(&0) + pages(list.list_bytes(members)));
            code_list_pages.push(code_list_pages.last().unwrap_or(&0) + pages(code_list.list_bytes(members)));
        }
        let mut stores = Vec::new();
        let lengths = [list_pages.last(), code_list_pages.last(), None];
        for (role, pages) in STORES.into_iter().zip(lengths) {
            let (name, entry) = manifest.file(role)?;
            let path = folder.join(name);
            let (file, _) = tier::open_direct(&path).map_err(|e| failed("opening", &path, &e))?;
            let length = file.metadata().map_err(|e| Error::io("opening", &path, &e))?.len();
            let expected = pages.map_or(entry.bytes, |&pages| u64::from(pages) * PAGE as u64);
            if length != entry.bytes || length != expected {
                return Err(files::senseless(&path));
            }
            stores.push(Arc::new(file));
        }
        let (path, bytes) = read_role(folder, manifest, files::PLACES)?;
        let places: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        if places.len() as u64 != manifest.rows || places.iter().any(|&at| u64::from(at) >= manifest.rows) {
            return Err(files::senseless(&path));
        }
        let resident = match wanted {
            OpenBaselines::Resident => {
                let (name, entry) = manifest.file(files::LIST_VECTORS)?;
                read_resident(folder, name, entry)?
            }
            _ => Resident::new(0).ok_or_else(|| files::senseless(folder))?,
        };
        let longest = list_pages.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
        Ok(BaselineFiles {
            list_bytes_max: longest as usize * PAGE,
            list_pages,
            list,
            code_list_pages,
            code_list,
            resident,
            places,
            row_block: base.block,
            stores,
        })
    }
}

/// The layouts of lists of vectors and of codes.
pub(crate) fn layouts(block: &BlockLayout, code_bytes: usize) -> (PostingLayout, PostingLayout) {
    let vectors = PostingLayout {
        entry_bytes: block.vector_bytes,
        id_bytes: block.id_bytes,
        norms: block.norms,
        checksum_seed: block.checksum_seed,
    };
    (vectors, PostingLayout { entry_bytes: code_bytes, id_bytes: 0, norms: false, ..vectors })
}

//! Files of other systems, open: lists of vectors and of codes, and vectors in the order of rows.

use std::fs::File;
use std::sync::Arc;

use stratann_core::PAGE;
use stratann_core::format::block::BlockLayout;
use stratann_core::format::posting_file::PostingLayout;
use stratann_core::kinds::gpu_ivf::baseline::Baselines;
use stratann_core::query::StoreId;
use stratann_storage::budget::Account;
use stratann_storage::data_file::{failed, read_resident};
use stratann_storage::tier::{self, Resident};
use stratann_storage::{Error, Result};

use super::{Baseline, OpenBaselines};
use crate::base::{Base, read_role};
use crate::files;
use crate::kinds::gpu_ivf::facts::{GpuFacts, GpuSection};
use crate::kinds::gpu_ivf::open::GpuIndex;

/// The roles of the files that queries read besides the blocks, in the order of their stores.
const STORES: [&str; 3] = [files::LIST_VECTORS, files::LIST_CODES, files::ROW_BLOCKS];

/// Files of other systems, open.
pub(crate) struct BaselineFiles {
    list_pages: Vec<u32>,
    list: PostingLayout,
    code_list_pages: Vec<u32>,
    code_list: PostingLayout,
    resident: Resident,
    places: Vec<u32>,
    row_block: BlockLayout,
    pub(crate) stores: Vec<Arc<File>>,
    pub(crate) list_bytes_max: usize,
}

impl OpenBaselines {
    /// Baselines on disk, where an index has them.
    pub(crate) fn of(section: Option<&GpuSection>) -> OpenBaselines {
        let has_files = section.is_some_and(|section| section.facts.baselines);
        if has_files { OpenBaselines::OnDisk } else { OpenBaselines::No }
    }
}

impl GpuIndex {
    /// Whether files of other systems are open.
    pub(crate) fn has_baselines(&self) -> bool {
        self.baselines.is_some()
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
}

/// The role of the file of a store besides the blocks.
pub(crate) fn store_role(store: StoreId) -> Option<&'static str> {
    usize::from(store.0).checked_sub(1).and_then(|number| STORES.get(number)).copied()
}

impl BaselineFiles {
    /// The part of the files that queries see.
    pub(crate) fn view(&self, facts: &GpuFacts) -> Baselines<'_> {
        Baselines {
            list_pages: &self.list_pages,
            list: self.list,
            code_list_pages: &self.code_list_pages,
            code_list: self.code_list,
            resident: &self.resident,
            places: &self.places,
            row_block: &self.row_block,
            rows_per_block: facts.vectors_per_block,
        }
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("lists in RAM", self.resident.len() as u64);
        let tables = self.list_pages.len() + self.code_list_pages.len() + self.places.len();
        account.add("tables of baselines", 4 * tables as u64);
    }

    pub(crate) fn open(base: &Base, index: &GpuIndex, wanted: OpenBaselines) -> Result<BaselineFiles> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        if !index.facts.baselines {
            return Err(Error::bad_input(format!(
                "{} has no files to search as other systems do; build it with --baselines",
                folder.display()
            )));
        }
        let (list, code_list) = layouts(&base.block, index.coder.code_bytes());
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

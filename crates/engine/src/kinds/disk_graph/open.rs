//! Part of an open `disk-graph` in RAM.

use std::ops::Range;
use std::path::Path;

use stratann_core::check::Blocks;
use stratann_core::exact::ResidentRows;
use stratann_core::format::block_map::BlockMap;
use stratann_core::kinds::KindView;
use stratann_core::kinds::disk_graph::{Codes, View};
use stratann_core::query::Params;
use stratann_core::route::HeadGraph;
use stratann_kernel::coder::Coder;
use stratann_storage::budget::Account;
use stratann_storage::data_file::{read_file, read_resident};
use stratann_storage::tier::Resident;
use stratann_storage::{Progress, Result};

use super::options::Switches;
use super::residency::Residency;
use super::{account, calibration, sieved};
use crate::base::{Base, decode_role};
use crate::codebook::root_mean_square_norm;
use crate::curve::{self, Curve, Grid, IN_MEMORY};
use crate::files;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::blocks;
use crate::kinds::questions::{Members, MovesIntoMemory, OpenKind};
use crate::manifest::Manifest;

/// Coder, codes, block map and head graph.
pub(crate) struct GraphTables {
    coder: Coder,
    codes: ResidentCodes,
    map: BlockMap,
    head: HeadGraph,
    code_error: f32,
    vector_norm: f32,
    residency: Residency,
}

/// The codes in RAM.
enum ResidentCodes {
    /// Codes of all nodes.
    All(Resident),
    /// Codes of the head graph's nodes; blocks carry the others.
    Head(Vec<u8>),
}

impl GraphTables {
    /// Reads and checks the files in RAM.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(base: &Base) -> Result<GraphTables> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let coder = decode_role(folder, manifest, files::CODEBOOK, |bytes| {
            files::decode_coder(bytes).filter(|coder| coder.dim() == manifest.dim)
        })?;
        let map = decode_role(folder, manifest, files::MAP, |bytes| {
            let is_whole = |m: &BlockMap| u64::from(m.nodes()) == manifest.rows;
            files::decode_map(bytes).filter(|m| is_whole(m) && m.blocks() == manifest.blocks.count)
        })?;
        let head = decode_role(folder, manifest, files::HEAD, |bytes| {
            files::decode_head(bytes).filter(|h| h.is_consistent(manifest.rows as u32))
        })?;
        let codes = read_codes(folder, manifest, &coder, &head)?;
        let vector_norm = vector_norm(&coder, &codes, &head);
        Ok(GraphTables {
            coder,
            codes,
            map,
            head,
            code_error: manifest.code_error,
            vector_norm,
            residency: Residency::default(),
        })
    }

    /// The part of the index that queries see.
    pub(crate) fn view<'a>(&'a self, base: &'a Base) -> View<'a> {
        View {
            block: &base.block,
            blocks: base.manifest.blocks.count,
            coder: &self.coder,
            codes: match &self.codes {
                ResidentCodes::All(codes) => Codes::All(codes),
                ResidentCodes::Head(codes) => Codes::Head(codes),
            },
            map: &self.map,
            code_error: self.code_error,
            vector_norm: self.vector_norm,
            head: &self.head,
            resident: self.residency.view(),
        }
    }

    /// The same, as if nothing but codes were in memory.
    pub(crate) fn view_on_disk<'a>(&'a self, base: &'a Base) -> View<'a> {
        View { resident: None, ..GraphTables::view(self, base) }
    }

    /// The curves among which a search for k results at a recall takes the cheapest. Where lists alone are in memory,
    /// it is the walk by codes if that compares fewer candidates than the other search reads blocks.
    pub(crate) fn families(
        &self,
        switches: &Switches,
        curves: &[Curve],
        (k, recall): (u32, f64),
    ) -> Vec<Option<&'static str>> {
        let has_other_rules = switches.patience.is_some() || !switches.whole_blocks;
        let reads_fewer = || {
            let [by_codes, usual] = [Some(IN_MEMORY), None].map(|f| curve::choose_of(curves, f, k, recall));
            let candidates = by_codes.map_or(f64::INFINITY, |point| calibration::candidates(k, &point));
            candidates <= usual.map_or(f64::INFINITY, |point| point.reads)
        };
        match switches.rerank {
            Some(rerank) if rerank > 0 => vec![Some(IN_MEMORY), None],
            None if has_other_rules => vec![None],
            None if self.residency.is_whole() => vec![Some(IN_MEMORY), None],
            None if self.residency.is_of_lists() && reads_fewer() => vec![Some(IN_MEMORY)],
            _ => vec![None],
        }
    }

    /// Bytes of a code.
    pub(crate) fn code_bytes(&self) -> usize {
        self.coder.code_bytes()
    }

    /// Sets what a search by a beam of a given length does where the graph is in memory.
    pub(crate) fn set_defaults(&self, params: &mut Params) {
        if self.residency.is_whole() {
            calibration::walk_by_codes(params);
        }
    }

    /// Whether the graph can be in memory with its codes.
    pub(crate) fn can_be_resident(&self) -> bool {
        matches!(self.codes, ResidentCodes::All(_))
    }

    /// The block that holds a node.
    pub(crate) fn block_of(&self, node: u32) -> u32 {
        self.map.block_of(node)
    }
}

impl Members for GraphTables {
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        blocks::member(base, self.block_of(id), id)
    }
}

impl OpenKind for GraphTables {
    fn view<'a>(&'a self, base: &'a Base) -> KindView<'a> {
        KindView::DiskGraph(GraphTables::view(self, base))
    }

    fn account(&self, account: &mut Account) {
        match &self.codes {
            ResidentCodes::All(codes) => account.add("codes", codes.len() as u64),
            ResidentCodes::Head(codes) => account.add("head codes", codes.len() as u64),
        }
        self.residency.account(account);
        account.add("head graph", self.head.bytes() as u64);
        account.add("block map", self.map.bytes() as u64);
        account.add("codebook", files::coder_bytes(&self.coder));
    }

    fn in_flight(&self) -> usize {
        blocks::IN_FLIGHT
    }

    fn in_flight_of_few(&self, queries: usize) -> Option<usize> {
        Some(queries.clamp(1, blocks::IN_FLIGHT))
    }

    fn query_tables_bytes(&self, base: &Base, _: u64) -> u64 {
        account::query_bytes(self.coder.code_bytes(), base)
    }

    fn grid(&self, base: &Base, k: u32, family: Option<&str>) -> Grid {
        match family {
            Some(IN_MEMORY) => calibration::memory_grid(k),
            _ => calibration::grid(k, base.manifest.blocks.count, base.manifest.rows),
        }
    }

    fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        Some(GraphTables::view(self, base).checked(base.view()))
    }

    fn entries(&self) -> Box<dyn Iterator<Item = (u32, u32)> + '_> {
        Box::new(self.head.ids.iter().map(|&node| (self.block_of(node), node)))
    }

    fn residency(&self) -> Option<&dyn MovesIntoMemory> {
        Some(self)
    }

    fn residency_mut(&mut self) -> Option<&mut dyn MovesIntoMemory> {
        Some(self)
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn block_with(&self, _: &Base, row: u32) -> Option<(u32, Range<u32>)> {
        let block = self.map.block_of(row);
        Some((block, self.map.nodes_of(block)))
    }

    fn plan_sieve(&self, base: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        Some(sieved::plan(&GraphTables::view(self, base), base.row_bytes(), query))
    }
}

impl MovesIntoMemory for GraphTables {
    fn resident_bytes(&self) -> u64 {
        self.residency.bytes()
    }

    fn is_resident(&self) -> bool {
        self.residency.is_whole()
    }

    fn rows(&self) -> Option<&ResidentRows> {
        self.residency.rows()
    }

    /// Those that an earlier version built have no curves of such searches.
    fn is_calibrated(&self, base: &Base) -> bool {
        let curves = &base.manifest.curves;
        curves.is_empty() || curves.iter().any(|curve| curve.family.as_deref() == Some(IN_MEMORY))
    }

    fn shrink(&mut self, budget_bytes: u64) {
        self.residency.shrink(budget_bytes);
    }

    /// Adjacency lists and vectors. Codes must be there already.
    fn make_resident(&mut self, base: &Base, budget_bytes: u64, progress: &dyn Progress) -> Result<()> {
        self.residency.shrink(budget_bytes);
        if self.can_be_resident() && !self.residency.is_whole() {
            self.residency = Residency::default();
            self.residency = Residency::fill(base, budget_bytes, progress)?;
        }
        Ok(())
    }
}

/// The root mean square length of vectors, by the codes of some nodes of the head graph.
fn vector_norm(coder: &Coder, codes: &ResidentCodes, head: &HeadGraph) -> f32 {
    const SAMPLE: usize = 1024;
    let step = head.ids.len().div_ceil(SAMPLE).max(1);
    let size = coder.code_bytes();
    let code = |(node, &id): (usize, &u32)| {
        let (codes, at) = match codes {
            ResidentCodes::All(codes) => (&codes[..], id as usize),
            ResidentCodes::Head(codes) => (&codes[..], node),
        };
        codes.get(at * size..(at + 1) * size)
    };
    root_mean_square_norm(coder, head.ids.iter().enumerate().step_by(step).filter_map(code))
}

fn read_codes(folder: &Path, manifest: &Manifest, coder: &Coder, head: &HeadGraph) -> Result<ResidentCodes> {
    let in_blocks = manifest.blocks.code_bytes > 0;
    let (name, entry) = manifest.file(if in_blocks { files::HEAD_CODES } else { files::CODES })?;
    let nodes = if in_blocks { head.ids.len() as u64 } else { manifest.rows };
    let fits = !in_blocks || manifest.blocks.code_bytes == coder.code_bytes();
    if !fits || entry.bytes != nodes * coder.code_bytes() as u64 {
        return Err(files::senseless(&folder.join(name)));
    }
    Ok(match in_blocks {
        true => ResidentCodes::Head(read_file(folder, name, entry)?),
        false => ResidentCodes::All(read_resident(folder, name, entry)?),
    })
}

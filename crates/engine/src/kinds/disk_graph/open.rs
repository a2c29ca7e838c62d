//! Part of an open `disk-graph` in RAM.

use std::path::Path;

use stratann_core::check::Blocks;
use stratann_core::format::block_map::BlockMap;
use stratann_core::kinds::KindView;
use stratann_core::kinds::disk_graph::{Codes, View};
use stratann_core::route::HeadGraph;
use stratann_kernel::coder::Coder;
use stratann_storage::Result;
use stratann_storage::budget::Account;
use stratann_storage::data_file::{read_file, read_resident};
use stratann_storage::tier::Resident;

use super::{account, calibration};
use crate::base::{Base, decode_role};
use crate::codebook::root_mean_square_norm;
use crate::curve::Grid;
use crate::files;
use crate::kinds::blocks;
use crate::kinds::questions::{Members, OpenKind};
use crate::manifest::Manifest;

/// Coder, codes, block map and head graph.
pub(crate) struct GraphTables {
    coder: Coder,
    codes: ResidentCodes,
    map: BlockMap,
    head: HeadGraph,
    code_error: f32,
    vector_norm: f32,
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
        Ok(GraphTables { coder, codes, map, head, code_error: manifest.code_error, vector_norm })
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
        }
    }

    /// The block that holds a node.
    pub(crate) fn block_of(&self, node: u32) -> u32 {
        self.map.block_of(node)
    }
}

impl Members for GraphTables {
    fn vector(&self, base: &Base, id: u32) -> Result<Vec<u8>> {
        blocks::vector(base, self.block_of(id), id)
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

    fn grid(&self, base: &Base, k: u32, _: Option<&str>) -> Grid {
        calibration::grid(k, base.manifest.blocks.count, base.manifest.rows)
    }

    fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        Some(GraphTables::view(self, base).checked(base.view()))
    }

    fn reads_blocks(&self) -> bool {
        true
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

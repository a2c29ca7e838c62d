//! HDF5: one two-dimensional dataset of numbers in the root group, as files of benchmarks have them
//! (`sift-128-euclidean.hdf5#train`).
//!
//! | part | what is read |
//! |---|---|
//! | superblock | versions 0 to 3 |
//! | object headers | versions 1 and 2 |
//! | groups | the root group, with a symbol table or with links in its header |
//! | data | contiguous, or in chunks under a B-tree of version 1, as h5py writes them by default |
//! | filters | gzip, shuffle, fletcher32, whose checksum is not compared |
//! | numbers | floats and whole numbers in either byte order |
//!
//! Floats of 64 bits are narrowed to f32. Whole numbers of more than 8 bits become f32, which must have them exactly.
//! Other files are refused with the line that converts them. Contiguous numbers in the form of components are read in
//! place; of chunks one band is in memory, the rows that chunks beside each other share.

mod chunks;
mod container;
mod dataset;
mod fields;
#[cfg(test)]
mod tests;

use std::path::Path;

use half::f16;
use stratann_kernel::DType;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{Layout, Reader, Shape};
use container::Container;
use dataset::{Dataset, Kind, Place, Stored, has_rows};

/// Largest f32 up to which whole numbers are exact.
const LARGEST_EXACT: i128 = 1 << 24;
/// Most names that an error lists.
const NAMES_SHOWN: usize = 20;

/// Rows that are converted, or gathered from chunks.
pub(super) struct Rows {
    place: Place,
    stored: Stored,
}

/// Opens the dataset `wanted`, or the only one with rows of numbers.
pub(super) fn open(path: &Path, wanted: Option<&str>) -> Result<Reader> {
    let source = Source::open(path)?;
    let Dataset { rows, dim, stored, place } = chosen(path, &source, wanted)?;
    let shape = Shape { rows, dim: usize::try_from(dim).unwrap_or(usize::MAX), dtype: stored.dtype() };
    shape.check(path)?;
    let layout = match place {
        Place::At(start) if stored.is_plain() => Layout::Plain { start },
        place => Layout::Hdf5(Box::new(Rows { place, stored })),
    };
    Ok(Reader { path: path.to_path_buf(), shape, source, layout })
}

fn chosen(path: &Path, source: &Source, wanted: Option<&str>) -> Result<Dataset> {
    let container = Container::open(path, source)?;
    let links = container.links()?;
    let name = path.display();
    if let Some(wanted) = wanted {
        let at = links.iter().find(|(own, _)| own == wanted).map(|(_, at)| *at).ok_or_else(|| {
            let all = listed(links.iter().map(|(own, _)| own));
            Error::bad_input(format!("{name} has no dataset {wanted:?}; there are {all}"))
        })?;
        return dataset::read(&container, wanted, &container.messages(at)?);
    }
    let mut found = Vec::new();
    for (own, at) in &links {
        let messages = container.messages(*at)?;
        if has_rows(&container, &messages) {
            found.push((own, messages));
        }
    }
    match found.as_slice() {
        [(own, messages)] => dataset::read(&container, own, messages),
        [] => Err(Error::bad_input(format!(
            "{name} has no two-dimensional dataset of numbers in its root group among {}; give one of rows and \
             components",
            listed(links.iter().map(|(own, _)| own))
        ))),
        many => Err(Error::bad_input(format!(
            "{name} has several datasets of rows ({}); choose one with {name}#NAME",
            listed(many.iter().map(|(own, _)| *own))
        ))),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let mut names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
    names.sort_unstable();
    let more = if names.len() > NAMES_SHOWN { ", …" } else { "" };
    names.truncate(NAMES_SHOWN);
    if names.is_empty() { "none".into() } else { names.join(", ") + more }
}

impl Rows {
    /// Replaces `out` with rows of a shape, which the dataset has.
    pub(super) fn read_rows(
        &self,
        (path, source): (&Path, &Source),
        shape: Shape,
        (first, count): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let row_bytes = shape.dim * self.stored.bytes;
        let mut bytes = Vec::new();
        match &self.place {
            Place::Chunks(chunks) => chunks.read_rows((path, source), (first, count), &mut bytes)?,
            Place::At(start) => {
                bytes.resize(count * row_bytes, 0);
                source.read_at(path, start + first * row_bytes as u64, &mut bytes)?;
            }
        }
        out.clear();
        if self.stored.is_plain() {
            std::mem::swap(out, &mut bytes);
            return Ok(());
        }
        out.reserve(count * shape.row_bytes());
        for (at, own) in bytes.chunks_exact(self.stored.bytes).enumerate() {
            convert(self.stored, own, out).map_err(|number| {
                let (row, component) = (first + (at / shape.dim) as u64, at % shape.dim);
                Error::bad_input(format!(
                    "row {row} of {}: component {component} is {number}, which f32 does not have exactly; convert the \
                     dataset",
                    path.display()
                ))
            })?;
        }
        Ok(())
    }
}

/// Appends a stored number as a component.
///
/// # Errors
/// A whole number that f32 does not have.
fn convert(stored: Stored, own: &[u8], out: &mut Vec<u8>) -> Result<(), i128> {
    let mut all = [0; 8];
    let item = &mut all[..own.len()];
    item.copy_from_slice(own);
    if stored.is_big_endian {
        item.reverse();
    }
    let bits = u64::from_le_bytes(all);
    match (stored.kind, stored.dtype(), own.len()) {
        (Kind::Float, DType::F16, _) => out.extend(f16::from_bits(bits as u16).to_le_bytes()),
        // What overflows becomes infinite, which is refused as such.
        (Kind::Float, _, 8) => out.extend((f64::from_bits(bits) as f32).to_le_bytes()),
        (Kind::Float, ..) => out.extend((bits as u32).to_le_bytes()),
        (_, DType::U8 | DType::I8, _) => out.push(bits as u8),
        (kind, _, bytes) => {
            let unused = 64 - 8 * bytes as u32;
            let number = match kind {
                Kind::Signed => i128::from((bits << unused) as i64 >> unused),
                _ => i128::from(bits),
            };
            if number.abs() > LARGEST_EXACT {
                return Err(number);
            }
            out.extend((number as f32).to_le_bytes());
        }
    }
    Ok(())
}

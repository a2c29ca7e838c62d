//! What an HDF5 file says of a dataset: its dimensions, the type of its numbers, and where they are.

use stratann_kernel::DType;
use stratann_storage::Result;

use super::chunks::{Chunk, Chunks, Filter};
use super::container::{Container, Message, kind};
use super::fields::Fields;

/// Numbers as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) kind: Kind,
    /// Bytes of a number.
    pub(super) bytes: usize,
    pub(super) is_big_endian: bool,
}

/// Kinds of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Float,
    Signed,
    Unsigned,
}

impl Stored {
    /// The type of components that holds them.
    pub(super) fn dtype(self) -> DType {
        match (self.kind, self.bytes) {
            (Kind::Float, 2) => DType::F16,
            (Kind::Signed, 1) => DType::I8,
            (Kind::Unsigned, 1) => DType::U8,
            _ => DType::F32,
        }
    }

    /// Whether they are stored as components are.
    pub(super) fn is_plain(self) -> bool {
        self.bytes == self.dtype().size()
            && (self.kind == Kind::Float || self.bytes == 1)
            && (!self.is_big_endian || self.bytes == 1)
    }
}

/// Where the numbers of a dataset are.
pub(super) enum Place {
    /// One after another from a place of the file on.
    At(u64),
    Chunks(Chunks),
}

/// A two-dimensional dataset of numbers.
pub(super) struct Dataset {
    pub(super) rows: u64,
    pub(super) dim: u64,
    pub(super) stored: Stored,
    pub(super) place: Place,
}

/// Whether an object is a two-dimensional dataset of numbers.
pub(super) fn has_rows(container: &Container<'_>, messages: &[Message]) -> bool {
    shape(container, messages).is_some_and(|dims| dims.len() == 2) && stored(messages).is_some()
}

fn body(messages: &[Message], kind: u16) -> Option<&[u8]> {
    messages.iter().find(|own| own.kind == kind && !own.is_shared).map(|own| own.body.as_slice())
}

/// Dimensions of a dataset; `None` for an object that has none.
fn shape(container: &Container<'_>, messages: &[Message]) -> Option<Vec<u64>> {
    let mut fields = Fields::new(body(messages, kind::DATASPACE)?);
    let (version, count) = (fields.byte()?, fields.byte()?);
    fields.skip(match version {
        1 => 6,
        2 => 2,
        _ => return None,
    })?;
    (0..count).map(|_| fields.number(container.length_bytes)).collect()
}

/// The type of its numbers; `None` for other types.
fn stored(messages: &[Message]) -> Option<Stored> {
    let mut fields = Fields::new(body(messages, kind::DATATYPE)?);
    let class = fields.byte()? & 15;
    let [low, ..] = *fields.take(3)?.first_chunk::<3>()?;
    let (bytes, offset, precision) = (fields.count(4)?, fields.number(2)?, fields.number(2)?);
    let is_big_endian = low & 1 == 1;
    if offset != 0 || precision != 8 * bytes as u64 {
        return None;
    }
    let kind = match (class, bytes) {
        (0, 1 | 2 | 4 | 8) if low & 8 != 0 => Kind::Signed,
        (0, 1 | 2 | 4 | 8) => Kind::Unsigned,
        // Bit 6 tells the order of a VAX.
        (1, 2 | 4 | 8) if low & 0x40 == 0 => {
            let exponent = (fields.byte()?, fields.byte()?);
            let mantissa = (fields.byte()?, fields.byte()?);
            let is_ieee = match bytes {
                2 => (exponent, mantissa) == ((10, 5), (0, 10)),
                4 => (exponent, mantissa) == ((23, 8), (0, 23)),
                _ => (exponent, mantissa) == ((52, 11), (0, 52)),
            };
            if !is_ieee {
                return None;
            }
            Kind::Float
        }
        _ => return None,
    };
    Some(Stored { kind, bytes, is_big_endian })
}

/// Reads what a file says of a dataset.
///
/// # Errors
/// `BadInput` for other numbers, dimensions and layouts, and for damage.
pub(super) fn read(container: &Container<'_>, name: &str, messages: &[Message]) -> Result<Dataset> {
    let wrong = |why: &str| container.wrong(&format!("the dataset {name:?} {why}"));
    let dims = shape(container, messages).ok_or_else(|| wrong("has no dimensions, or is none"))?;
    let &[rows, dim] = dims.as_slice() else {
        return Err(wrong(&format!("has {} dimensions of array, 2 are needed", dims.len())));
    };
    let stored = stored(messages).ok_or_else(|| {
        wrong("has values that are no floats or whole numbers of 8, 16, 32 or 64 bits in their usual forms")
    })?;
    let layout = body(messages, kind::LAYOUT).ok_or_else(|| wrong("has no layout"))?;
    let row_bytes = dim.checked_mul(stored.bytes as u64);
    let all = row_bytes.and_then(|bytes| bytes.checked_mul(rows)).ok_or_else(|| wrong("is too large"))?;
    let mut fields = Fields::new(layout);
    let place = match (fields.byte(), fields.byte()) {
        (Some(3 | 4), Some(1)) => {
            let at = fields.number(container.place_bytes).ok_or_else(|| wrong("has a damaged layout"))?;
            if !container.is_place(at) {
                return Err(wrong("has no values, since none were written"));
            }
            Place::At(container.place(at, all, "the dataset")?)
        }
        (Some(3), Some(2)) => {
            let filters = match messages.iter().find(|own| own.kind == kind::FILTERS) {
                None => Vec::new(),
                Some(own) => filters(&own.body).ok_or_else(|| {
                    wrong("is compressed by other filters than gzip, shuffle and fletcher32")
                })?,
            };
            let chunks = chunks(container, &mut fields, (rows, dim, stored.bytes), filters);
            Place::Chunks(chunks?.ok_or_else(|| wrong("has a damaged layout, or chunks that are too large"))?)
        }
        (Some(4), Some(2)) => {
            return Err(wrong("has chunks of the newer form; write the file with libver=\"earliest\""));
        }
        _ => return Err(wrong("has another layout than contiguous or chunked")),
    };
    Ok(Dataset { rows, dim, stored, place })
}

/// The chunks of a dataset; `None` for what is damaged.
fn chunks(
    container: &Container<'_>,
    fields: &mut Fields<'_>,
    (rows, dim, item): (u64, u64, usize),
    filters: Vec<Filter>,
) -> Result<Option<Chunks>> {
    let mut head = || {
        let count = fields.byte()?;
        let tree = fields.number(container.place_bytes)?;
        let (own_rows, own_columns, own_item) = (fields.number(4)?, fields.number(4)?, fields.count(4)?);
        (count == 3 && own_item == item).then_some((tree, own_rows, own_columns))
    };
    let Some((tree, own_rows, own_columns)) = head() else { return Ok(None) };
    let Some(mut chunks) = Chunks::new((own_rows, own_columns), (dim, item), filters) else {
        return Ok(None);
    };
    if container.is_place(tree) {
        // Bytes of the chunk, filters that were left out, and the place of its first number.
        container.leaves(tree, (1, 32), &mut |key, child| {
            let mut own = Fields::new(key);
            let mut read = || {
                let (bytes, left_out) = (own.number(4)?, own.number(4)? as u32);
                let (row, column) = (own.number(8)?, own.number(8)?);
                let chunk = Chunk { at: container.place(child, bytes, "a chunk").ok()?, bytes, left_out };
                (row < rows && column < dim).then_some(((row, column), chunk))
            };
            match read() {
                Some((place, chunk)) if chunks.add(place, chunk) => Ok(()),
                _ => Err(container.wrong("a chunk of a dataset is damaged, or lies beyond the file")),
            }
        })?;
    }
    match chunks.has_rows(rows) {
        true => Ok(Some(chunks)),
        false => Err(container.wrong("some of the chunks of the dataset were never written")),
    }
}

/// The filters of a dataset, in the order in which they were applied; `None` for what is not read.
fn filters(body: &[u8]) -> Option<Vec<Filter>> {
    let mut fields = Fields::new(body);
    let (version, count) = (fields.byte()?, fields.byte()?);
    if version == 1 {
        fields.skip(6)?;
    }
    let filter = |_| {
        let id = fields.number(2)?;
        let has_name = version == 1 || id >= 256;
        let name = if has_name { fields.count(2)? } else { 0 };
        fields.skip(2)?;
        let values = fields.count(2)?;
        fields.skip(if version == 1 { name.next_multiple_of(8) } else { name })?;
        fields.skip(4 * values + if version == 1 { 4 * (values % 2) } else { 0 })?;
        Filter::of(id)
    };
    (0..count).map(filter).collect()
}

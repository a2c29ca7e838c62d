//! `.fbin .f16bin .u8bin .i8bin`: u32 rows, u32 dim, then rows (the layout of big-ann-benchmarks).

use std::path::Path;

use stratann_kernel::DType;
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{Layout, Reader, Shape, check_length};

/// Bytes before the first row.
pub const HEADER: u64 = 8;

/// Returns the component type of a suffix.
pub(super) fn dtype(suffix: &str) -> DType {
    match suffix {
        "f16bin" => DType::F16,
        "u8bin" => DType::U8,
        "i8bin" => DType::I8,
        _ => DType::F32,
    }
}

/// Returns the suffix of a component type.
pub fn suffix_of(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "fbin",
        DType::F16 => "f16bin",
        DType::U8 => "u8bin",
        DType::I8 => "i8bin",
    }
}

/// Reads the two counts at the start.
pub(super) fn header(path: &Path, source: &Source) -> Result<(u32, u32)> {
    if source.len() < HEADER {
        let message = format!(
            "{} is truncated: a header of {HEADER} bytes is expected, but it has {} (no row is complete); copy it \
             again",
            path.display(),
            source.len()
        );
        return Err(Error::bad_input(message));
    }
    let mut bytes = [0u8; HEADER as usize];
    source.read_at(path, 0, &mut bytes)?;
    let [a, b, c, d, e, f, g, h] = bytes;
    Ok((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
}

pub(super) fn open(path: &Path, dtype: DType) -> Result<Reader> {
    let source = Source::open(path)?;
    let (rows, dim) = header(path, &source)?;
    let shape = Shape { rows: rows.into(), dim: dim as usize, dtype };
    shape.check(path)?;
    check_length(path, shape, HEADER, source.len())?;
    Ok(Reader { path: path.to_path_buf(), shape, source, layout: Layout::Plain { start: HEADER } })
}

/// Writes a `.fbin`, `.f16bin`, `.u8bin` or `.i8bin` file, which appears under its path atomically.
///
/// `blocks` provides bytes of whole rows, any number at a time, `shape.rows` in all. The suffix must match
/// `shape.dtype`.
///
/// # Errors
///
/// `BadInput` for a wrong suffix, more than 2³² − 1 rows, or blocks with another number of rows; `Io` for errors of the
/// operating system; errors of `blocks`. In all cases an earlier file at the path stays.
pub fn write_bin<B: AsRef<[u8]>>(
    output: &OutputPath,
    shape: Shape,
    blocks: impl IntoIterator<Item = Result<B>>,
) -> Result<()> {
    let path = output.path();
    let name = path.display();
    let wanted = suffix_of(shape.dtype);
    if super::suffix(path) != wanted {
        let message =
            format!("{name}: a file of {} vectors is named .{wanted}; rename it", shape.dtype.name());
        return Err(Error::bad_input(message));
    }
    shape.check(path)?;
    let Ok(rows) = u32::try_from(shape.rows) else {
        let message =
            format!("{name}: {} rows do not fit the header (4294967295); split the set", shape.rows);
        return Err(Error::bad_input(message));
    };
    let mut file = output.create()?;
    file.write(&rows.to_le_bytes())?;
    file.write(&(shape.dim as u32).to_le_bytes())?;
    let expected = shape.rows * shape.row_bytes() as u64;
    let mut written = 0u64;
    for block in blocks {
        let block = block?;
        file.write(block.as_ref())?;
        written += block.as_ref().len() as u64;
    }
    if written != expected {
        let message =
            format!("{name}: {written} bytes of rows were given, {expected} promised; nothing is written");
        return Err(Error::bad_input(message));
    }
    file.commit()
}

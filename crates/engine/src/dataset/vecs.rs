//! `.fvecs .bvecs .ivecs`: every row after its own dimension as i32 (TEXMEX).

use std::path::Path;

use stratann_kernel::DType;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{Layout, Reader, Shape};

/// Reads the dimension of the first row and splits the file into rows of `4 + dim × size` bytes.
pub(super) fn divide(path: &Path, source: &Source, size: usize) -> Result<(u64, usize)> {
    let (name, len) = (path.display(), source.len());
    if len == 0 {
        return Err(Error::bad_input(format!("{name} has 0 rows; give at least one vector")));
    }
    if len < 4 {
        let message = format!(
            "{name} is truncated: a dimension of 4 bytes is expected, but it has {len} (no row is complete); copy \
             it again"
        );
        return Err(Error::bad_input(message));
    }
    let mut bytes = [0u8; 4];
    source.read_at(path, 0, &mut bytes)?;
    let dim = i32::from_le_bytes(bytes);
    if dim <= 0 {
        let message = format!("{name}: row 0 says it has {dim} dimensions; at least 1 is needed");
        return Err(Error::bad_input(message));
    }
    let stride = 4 + dim as u64 * size as u64;
    let (rows, rest) = (len / stride, len % stride);
    if rest > 0 {
        let expected = (rows + 1) * stride;
        let last = if rows == 0 {
            "no row is complete".to_owned()
        } else {
            format!("the last complete row is {}", rows - 1)
        };
        let message = format!(
            "{name} is truncated: rows of {stride} bytes ask for {expected} bytes, but it has {len} ({last}); copy \
             it again"
        );
        return Err(Error::bad_input(message));
    }
    Ok((rows, dim as usize))
}

pub(super) fn open(path: &Path, dtype: DType) -> Result<Reader> {
    let source = Source::open(path)?;
    let (rows, dim) = divide(path, &source, dtype.size())?;
    let shape = Shape { rows, dim, dtype };
    Ok(Reader { path: path.to_path_buf(), shape, source, layout: Layout::Prefixed })
}

/// Removes the dimensions from a block of rows in place; `width` is the bytes of a row without it.
pub(super) fn drop_prefixes(
    path: &Path,
    dim: usize,
    width: usize,
    first: u64,
    block: &mut Vec<u8>,
) -> Result<()> {
    let rows = block.len() / (width + 4);
    for row in 0..rows {
        let start = row * (width + 4);
        let found = i32::from_le_bytes([block[start], block[start + 1], block[start + 2], block[start + 3]]);
        if i64::from(found) != dim as i64 {
            let message = format!(
                "{}: row {} says it has {found} dimensions, row 0 has {dim}; all must agree",
                path.display(),
                first + row as u64
            );
            return Err(Error::bad_input(message));
        }
        block.copy_within(start + 4..start + 4 + width, row * width);
    }
    block.truncate(rows * width);
    Ok(())
}

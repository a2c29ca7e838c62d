//! `.npy`, format versions 1 to 3 (numpy.lib.format): magic, version, length of the header, a Python dictionary, data.
//!
//! Arrays in C order with little-endian components of an element type are read as they are. Others are converted:
//! Fortran order, big-endian components, and 64-bit floats, which are narrowed to f32.

use std::path::Path;

use stratann_kernel::DType;
use stratann_storage::{Error, Result};

use super::source::Source;
use super::{Layout, Reader, Shape, check_length};

/// Longest plausible header; NumPy pads headers to a few dozen bytes.
const LONGEST_HEADER: u64 = 1 << 20;

/// Fields of a header.
pub(super) struct Header {
    pub(super) descr: String,
    pub(super) shape: Vec<u64>,
    /// Offset of the data.
    pub(super) start: u64,
    /// Whether columns follow each other, not rows.
    pub(super) is_fortran: bool,
}

/// An array that is converted to rows of its shape.
pub(super) struct Array {
    start: u64,
    /// Bytes of a component.
    item: usize,
    is_big_endian: bool,
    is_fortran: bool,
}

impl Array {
    /// Replaces `out` with rows of the shape.
    pub(super) fn read_rows(
        &self,
        (path, source): (&Path, &Source),
        shape: Shape,
        (first, count): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (item, width) = (self.item, shape.dtype.size());
        let mut bytes = Vec::new();
        out.clear();
        out.resize(count * shape.row_bytes(), 0);
        if !self.is_fortran {
            bytes.resize(count * shape.dim * item, 0);
            let row_bytes = (shape.dim * item) as u64;
            source.read_at(path, self.start + first * row_bytes, &mut bytes)?;
            for (own, to) in bytes.chunks_exact(item).zip(out.chunks_exact_mut(width)) {
                self.convert(own, to);
            }
            return Ok(());
        }
        bytes.resize(count * item, 0);
        for column in 0..shape.dim {
            let place = column as u64 * shape.rows + first;
            source.read_at(path, self.start + place * item as u64, &mut bytes)?;
            let rows = out.chunks_exact_mut(shape.row_bytes());
            for (own, row) in bytes.chunks_exact(item).zip(rows) {
                self.convert(own, &mut row[column * width..(column + 1) * width]);
            }
        }
        Ok(())
    }

    /// Puts a stored component into the bytes of one of the shape.
    fn convert(&self, own: &[u8], to: &mut [u8]) {
        let mut item = [0; 8];
        let item = &mut item[..own.len()];
        item.copy_from_slice(own);
        if self.is_big_endian {
            item.reverse();
        }
        match item.first_chunk::<8>() {
            // What overflows becomes infinite, which is refused as such.
            Some(wide) => to.copy_from_slice(&(f64::from_le_bytes(*wide) as f32).to_le_bytes()),
            None => to.copy_from_slice(item),
        }
    }
}

pub(super) fn open(path: &Path) -> Result<Reader> {
    let source = Source::open(path)?;
    let header = header(path, &source)?;
    let name = path.display();
    let (order, kind) = header.descr.split_at_checked(1).unwrap_or_default();
    let (dtype, item) = match (order, kind) {
        ("<" | ">", "f4") => (DType::F32, 4),
        ("<" | ">", "f8") => (DType::F32, 8),
        ("<" | ">", "f2") => (DType::F16, 2),
        ("|", "u1") => (DType::U8, 1),
        ("|", "i1") => (DType::I8, 1),
        _ => {
            let other = &header.descr;
            let message = format!(
                "{name}: components of type {other:?} are not supported; save array.astype(\"float32\"), \
                 \"float16\", \"uint8\" or \"int8\""
            );
            return Err(Error::bad_input(message));
        }
    };
    let &[rows, dim] = header.shape.as_slice() else {
        let message = format!(
            "{name} has {} dimensions of array, 2 are needed; save array.reshape(rows, components)",
            header.shape.len()
        );
        return Err(Error::bad_input(message));
    };
    let shape = Shape { rows, dim: usize::try_from(dim).unwrap_or(usize::MAX), dtype };
    shape.check(path)?;
    check_stored(path, (shape, item), header.start, source.len())?;
    let (start, is_big_endian, is_fortran) = (header.start, order == ">", header.is_fortran);
    let layout = match item == dtype.size() && !is_big_endian && !is_fortran {
        true => Layout::Plain { start },
        false => Layout::Converted(Array { start, item, is_big_endian, is_fortran }),
    };
    Ok(Reader { path: path.to_path_buf(), shape, source, layout })
}

/// Compares the length of the data with its header, where a component has so many bytes.
fn check_stored(path: &Path, (shape, item): (Shape, usize), start: u64, actual: u64) -> Result<()> {
    if item == shape.dtype.size() {
        return check_length(path, shape, start, actual);
    }
    let (name, Shape { rows, dim, .. }) = (path.display(), shape);
    let expected = u128::from(start) + u128::from(rows) * dim as u128 * item as u128;
    if expected == u128::from(actual) {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "{name}: its header says {rows} rows of {dim} components of {item} bytes, {expected} bytes, but it has \
         {actual}; copy it again"
    )))
}

/// Reads and checks the header; the caller checks the length of the data.
pub(super) fn header(path: &Path, source: &Source) -> Result<Header> {
    let name = path.display();
    let truncated = |expected: u64| {
        Error::bad_input(format!(
            "{name} is truncated: its header takes {expected} bytes, but it has {} (no row is complete); copy it again",
            source.len()
        ))
    };
    let mut fixed = [0u8; 12];
    let have = source.len().min(12) as usize;
    source.read_at(path, 0, &mut fixed[..have])?;
    let magic = b"\x93NUMPY";
    if fixed[..have.min(6)] != magic[..have.min(6)] {
        return Err(Error::bad_input(format!("{name} is not an .npy file; save it with numpy.save")));
    }
    if have < 10 {
        return Err(truncated(10));
    }
    let (start, length) = match fixed[6] {
        1 => (10, u64::from(u16::from_le_bytes([fixed[8], fixed[9]]))),
        2 | 3 if have == 12 => {
            (12, u64::from(u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]])))
        }
        2 | 3 => return Err(truncated(12)),
        version => {
            let message =
                format!("{name} is .npy version {version}; versions 1 to 3 are read, save it again");
            return Err(Error::bad_input(message));
        }
    };
    if length > LONGEST_HEADER {
        let message = format!("{name}: an .npy header of {length} bytes is not plausible; save it again");
        return Err(Error::bad_input(message));
    }
    if start + length > source.len() {
        return Err(truncated(start + length));
    }
    let mut text = vec![0u8; length as usize];
    source.read_at(path, start, &mut text)?;
    let Dictionary { descr, fortran_order, shape } = dictionary(&text)
        .ok_or_else(|| Error::bad_input(format!("{name}: its .npy header cannot be read; save it again")))?;
    Ok(Header { descr, shape, start: start + length, is_fortran: fortran_order })
}

/// The dictionary of a header.
struct Dictionary {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, keys in any order.
fn dictionary(text: &[u8]) -> Option<Dictionary> {
    let mut rest = Cursor { text };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    rest.take(b'{')?;
    while rest.take(b'}').is_none() {
        let key = rest.string()?;
        rest.take(b':')?;
        match key.as_str() {
            "descr" => descr = Some(rest.descr()?),
            "fortran_order" => fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.tuple()?),
            _ => return None,
        }
        if rest.take(b',').is_none() {
            rest.take(b'}')?;
            break;
        }
    }
    rest.skip_space();
    if !rest.text.is_empty() {
        return None;
    }
    Some(Dictionary { descr: descr?, fortran_order: fortran?, shape: shape? })
}

/// Rest of a header.
struct Cursor<'a> {
    text: &'a [u8],
}

impl Cursor<'_> {
    fn skip_space(&mut self) {
        self.text = self.text.trim_ascii_start();
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        self.skip_space();
        self.text = self.text.strip_prefix(&[wanted])?;
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        self.skip_space();
        let quote = *self.text.first().filter(|&&c| c == b'\'' || c == b'"')?;
        let end = 1 + self.text[1..].iter().position(|&c| c == quote)?;
        let value = String::from_utf8_lossy(&self.text[1..end]).into_owned();
        self.text = &self.text[end + 1..];
        Some(value)
    }

    /// Name of a type, or the fields of a record as text, for the error message.
    fn descr(&mut self) -> Option<String> {
        self.skip_space();
        if self.text.first() != Some(&b'[') {
            return self.string();
        }
        let end = 1 + self.text.iter().position(|&c| c == b']')?;
        let value = String::from_utf8_lossy(&self.text[..end]).into_owned();
        self.text = &self.text[end..];
        Some(value)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.skip_space();
        for (name, value) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.text.strip_prefix(name) {
                self.text = rest;
                return Some(value);
            }
        }
        None
    }

    fn tuple(&mut self) -> Option<Vec<u64>> {
        self.take(b'(')?;
        let mut values = Vec::new();
        while self.take(b')').is_none() {
            self.skip_space();
            let digits = self.text.iter().take_while(|c| c.is_ascii_digit()).count();
            values.push(std::str::from_utf8(&self.text[..digits]).ok()?.parse().ok()?);
            self.text = &self.text[digits..];
            // Python 2 wrote long integers with an L.
            let _ = self.take(b'L');
            if self.take(b',').is_none() {
                self.take(b')')?;
                break;
            }
        }
        Some(values)
    }
}

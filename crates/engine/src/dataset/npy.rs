//! `.npy`, format versions 1 to 3 (numpy.lib.format): magic, version, length of the header, a Python dictionary, data.

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
}

pub(super) fn open(path: &Path) -> Result<Reader> {
    let source = Source::open(path)?;
    let header = header(path, &source)?;
    let name = path.display();
    let dtype = match header.descr.as_str() {
        "<f4" => DType::F32,
        "<f2" => DType::F16,
        "|u1" => DType::U8,
        "|i1" => DType::I8,
        other => {
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
    check_length(path, shape, header.start, source.len())?;
    Ok(Reader { path: path.to_path_buf(), shape, source, layout: Layout::Plain { start: header.start } })
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
    if fortran_order {
        let message = format!("{name} is in Fortran order; save numpy.ascontiguousarray(array)");
        return Err(Error::bad_input(message));
    }
    Ok(Header { descr, shape, start: start + length })
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

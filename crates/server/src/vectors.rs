//! Vectors of a request as rows of the element type of an index or a collection.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use half::f16;
use serde::Deserializer;
use serde::de::{self, SeqAccess, Visitor};
use serde_json::value::RawValue;
use stratann_engine::dataset::check_row;
use stratann_engine::{DType, Metric};

use crate::request::quoting;

/// Layout of vectors, and what errors call them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) dim: usize,
    pub(crate) dtype: DType,
    pub(crate) metric: Metric,
    /// One and several, such as query and queries.
    pub(crate) nouns: (&'static str, &'static str),
    /// What has the layout, such as an index.
    pub(crate) owner: &'static str,
    /// Most vectors of a request.
    pub(crate) most: usize,
}

impl Wanted {
    /// The error of more vectors than a request may have.
    pub(crate) fn too_many(&self, count: usize) -> String {
        format!(
            "{count} {} in one request; this server takes up to {} (max_batch), send more requests",
            self.nouns.1, self.most
        )
    }

    /// Refuses a row without valid distances.
    ///
    /// # Errors
    /// One line for the client.
    pub(crate) fn check(&self, number: usize, row: &[u8]) -> Result<(), String> {
        let noun = self.nouns.0;
        match check_row(self.dtype, self.metric, row) {
            None => Ok(()),
            Some(bad) => Err(format!("{noun} {number}: {bad}; correct the {noun}")),
        }
    }
}

/// Reads a list of lists of numbers.
///
/// # Errors
/// One line for the client.
pub(crate) fn from_json(text: &str, wanted: &Wanted) -> Result<Vec<u8>, String> {
    Rows { wanted, bytes: Vec::new(), count: 0, has: None, wrong: None }.read(text).map(|rows| rows.bytes)
}

/// Reads a list in which a vector may be null, or in base64 by itself; or all in base64. Returns the rows that are
/// there, and which ones are; `None` where all are.
///
/// # Errors
/// One line for the client.
pub(crate) fn some_from_json_or_base64(
    text: &str,
    wanted: &Wanted,
) -> Result<(Vec<u8>, Option<Vec<bool>>), String> {
    if text.starts_with('"') {
        return Ok((from_json_or_base64(text, wanted)?, None));
    }
    let rows = Rows { wanted, bytes: Vec::new(), count: 0, has: Some(Vec::new()), wrong: None }.read(text)?;
    Ok((rows.bytes, rows.has.filter(|has| has.contains(&false))))
}

/// Reads a list of lists of numbers, or the rows in base64: components one after another, little-endian.
///
/// # Errors
/// One line for the client.
pub(crate) fn from_json_or_base64(text: &str, wanted: &Wanted) -> Result<Vec<u8>, String> {
    if !text.starts_with('"') {
        return from_json(text, wanted);
    }
    let (noun, nouns) = wanted.nouns;
    let unread = |why: &dyn fmt::Display| format!("\"{nouns}\" is no base64: {why}; encode the rows again");
    let encoded: Cow<'_, str> = serde_json::from_str(text).map_err(|e| unread(&quoting(&e)))?;
    let rows = BASE64.decode(encoded.as_bytes()).map_err(|e| unread(&e))?;
    let row_bytes = wanted.dim * wanted.dtype.size();
    if row_bytes == 0 || !rows.len().is_multiple_of(row_bytes) {
        return Err(format!(
            "\"{nouns}\" has {} bytes, a {noun} of this {} has {row_bytes} ({} × {}); send whole {nouns}",
            rows.len(),
            wanted.owner,
            wanted.dim,
            wanted.dtype.name()
        ));
    }
    let count = rows.len() / row_bytes;
    if count > wanted.most {
        return Err(wanted.too_many(count));
    }
    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
        wanted.check(number, row)?;
    }
    Ok(rows)
}

/// Converts a list of lists of numbers into rows, one list at a time. An invalid list ends the conversion; `wrong` has
/// the reason.
struct Rows<'a> {
    wanted: &'a Wanted,
    bytes: Vec<u8>,
    count: usize,
    /// Which rows are there, where some may be null; else `None`.
    has: Option<Vec<bool>>,
    wrong: Option<String>,
}

impl<'de> Visitor<'de> for &mut Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vectors")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(row) = seq.next_element::<&'de RawValue>()? {
            if let Err(wrong) = self.push(row.get()) {
                self.wrong = Some(wrong);
                return Err(de::Error::custom("wrong"));
            }
        }
        Ok(())
    }
}

impl Rows<'_> {
    fn read(mut self, text: &str) -> Result<Self, String> {
        let read = serde_json::Deserializer::from_str(text).deserialize_seq(&mut self);
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        read.map_err(|_| format!("\"{}\" is no list of vectors; give [[…], …]", self.wanted.nouns.1))?;
        Ok(self)
    }

    fn push(&mut self, text: &str) -> Result<(), String> {
        let (number, wanted) = (self.count, self.wanted);
        let Wanted { dim, dtype, nouns: (noun, _), owner, .. } = *wanted;
        if number == wanted.most {
            return Err(wanted.too_many(number + 1));
        }
        if let Some(has) = &mut self.has {
            has.push(text != "null");
            if text == "null" {
                self.count += 1;
                return Ok(());
            }
            if text.starts_with('"') {
                let row = from_json_or_base64(text, wanted).map_err(|e| format!("{noun} {number}: {e}"))?;
                if row.len() != dim * dtype.size() {
                    return Err(format!("{noun} {number} in base64 is not one {noun}; send each by itself"));
                }
                self.bytes.extend(row);
                self.count += 1;
                return Ok(());
            }
        }
        // Components are counted before they are read, so that a vector takes no more memory than one of the index.
        let found = if text.contains(|c: char| !c.is_whitespace() && !"[]".contains(c)) {
            text.bytes().filter(|&b| b == b',').count() + 1
        } else {
            0
        };
        if found != dim && text.starts_with('[') {
            return Err(format!("{noun} {number} has {found} dimensions, the {owner} has {dim}"));
        }
        let unread = |e: serde_json::Error| format!("{noun} {number}: {}", quoting(&e));
        let start = self.bytes.len();
        if dtype.is_float() {
            let row: Vec<f32> = serde_json::from_str(text).map_err(unread)?;
            match dtype {
                DType::F16 => self.bytes.extend(row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
                _ => self.bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())),
            }
        } else {
            let row: Vec<f64> = serde_json::from_str(text).map_err(unread)?;
            for (component, &x) in row.iter().enumerate() {
                let byte = whole(x, dtype).ok_or_else(|| {
                    format!(
                        "{noun} {number}: component {component} is {x}, the {owner} holds {}",
                        dtype.name()
                    )
                })?;
                self.bytes.push(byte);
            }
        }
        self.count += 1;
        wanted.check(number, &self.bytes[start..])
    }
}

/// A number as one byte of u8 or i8; `None` when it is none of them.
fn whole(x: f64, dtype: DType) -> Option<u8> {
    let (low, high) = if dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
    (x.fract() == 0.0 && (low..=high).contains(&x)).then_some(x as i16 as u8)
}

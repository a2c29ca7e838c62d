//! Strings or words of a field, sorted, each with its rows.
//!
//! Terms are in `fst` maps of up to 256, each in a part of its own. In memory are where each map begins and, of a field
//! whose maps have at most 1 MiB, the maps; others are read one by one when a term is asked for.
//!
//! | bytes | table, for each map |
//! |---|---|
//! | 8 | place |
//! | 4 | bytes |
//! | 4 | bytes of what follows |
//! | | a text that no term of the map is below, and all terms before it are |
//!
//! In an index of UUIDs a term is 0 and 16 bytes where a string is a UUID in lower case, and 1 and the string
//! otherwise.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fst::{IntoStreamer, Map, MapBuilder, Streamer};
use stratann_storage::{Error, Result};

use super::PartEntry;
use super::bitmaps::{self, Code};
use super::runs::{Run, RunFile};
use crate::id::{uuid_of, uuid_text};
use crate::stored::{PartFile, PartWriter, Window, number, number32};

/// Most terms of a map. Small in tests, so that few rows have many maps.
const MAP_TERMS: usize = if cfg!(test) { 8 } else { 256 };
/// Bytes of terms after which a map ends.
const MAP_BYTES: usize = 32 << 10;
/// Most bytes of the maps of a field that are kept in memory. Small in tests, which try both.
const RESIDENT_BYTES: u64 = if cfg!(test) { 200 } else { 1 << 20 };
/// Bytes of a map in the table before its text.
const HEAD_BYTES: usize = 16;

/// How strings are written as terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Uuid,
}

impl Form {
    fn term(self, text: &str) -> Cow<'_, [u8]> {
        if self == Form::Plain {
            return Cow::Borrowed(text.as_bytes());
        }
        match uuid_of(text).filter(|uuid| uuid_text(uuid) == text) {
            Some(uuid) => [&[0], &uuid[..]].concat().into(),
            None => [&[1], text.as_bytes()].concat().into(),
        }
    }

    /// The string of a term; `None` for a term that is none.
    fn text(self, term: &[u8]) -> Option<Cow<'_, str>> {
        let plain = |bytes| std::str::from_utf8(bytes).ok().map(Cow::Borrowed);
        match (self, term) {
            (Form::Plain, bytes) | (Form::Uuid, [1, bytes @ ..]) => plain(bytes),
            (Form::Uuid, [0, bytes @ ..]) => bytes.try_into().ok().map(|uuid| uuid_text(uuid).into()),
            (Form::Uuid, _) => None,
        }
    }
}

/// Memory of a term while it is gathered and sorted, besides its bytes; and of a row of it.
const TERM_BYTES: usize = 128;
const PAIR_BYTES: usize = 24;

/// Terms that are gathered: each different one once, and eight bytes for each row of it.
pub(super) struct TermsBuilder {
    form: Form,
    terms: HashMap<Vec<u8>, u32>,
    /// Bytes of all terms.
    bytes: usize,
    /// Number of the term, row; in the order of rows.
    pairs: Vec<(u32, u32)>,
    /// Terms and rows that were gathered before.
    runs: Vec<Run>,
}

impl TermsBuilder {
    pub(super) fn new(form: Form) -> TermsBuilder {
        TermsBuilder { form, terms: HashMap::new(), bytes: 0, pairs: Vec::new(), runs: Vec::new() }
    }

    /// Adds a string of a row; rows ascend.
    pub(super) fn push(&mut self, text: &str, row: u32) {
        self.push_term(self.form.term(text), row);
    }

    /// Adds a term of a row; rows ascend.
    pub(super) fn push_term(&mut self, term: Cow<'_, [u8]>, row: u32) {
        let next = self.terms.len() as u32;
        let number = match self.terms.get(&*term) {
            Some(number) => *number,
            None => {
                self.bytes += term.len();
                self.terms.insert(term.into_owned(), next);
                next
            }
        };
        self.pairs.push((number, row));
    }

    /// Memory until it is written, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.terms.len() * TERM_BYTES + self.pairs.len() * PAIR_BYTES
    }

    /// Writes what was gathered so far as a run. Later rows are beyond it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn spill(&mut self, file: &mut RunFile) -> Result<()> {
        let mut run = file.begin()?;
        self.take_sorted(|term, rows| run.add(term, rows))?;
        self.runs.push(run.finish()?);
        Ok(())
    }

    /// Passes the terms of the memory in their order, with their rows, and forgets them.
    fn take_sorted(&mut self, mut each: impl FnMut(&[u8], &[u32]) -> Result<()>) -> Result<()> {
        let (terms, pairs) = (std::mem::take(&mut self.terms), std::mem::take(&mut self.pairs));
        self.bytes = 0;
        // Rows of a term stand from `starts[number]` on.
        let mut starts = vec![0usize; terms.len() + 1];
        pairs.iter().for_each(|(number, _)| starts[*number as usize + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut ends = starts.clone();
        let mut rows = vec![0u32; pairs.len()];
        for (number, row) in pairs {
            let end = &mut ends[number as usize];
            rows[*end] = row;
            *end += 1;
        }
        let mut sorted: Vec<(Vec<u8>, u32)> = terms.into_iter().collect();
        sorted.sort_unstable();
        let mut own = Vec::new();
        for (term, number) in sorted {
            own.clear();
            own.extend(&rows[starts[number as usize]..starts[number as usize + 1]]);
            own.dedup();
            each(&term, &own)?;
        }
        Ok(())
    }

    /// Writes rows and terms.
    ///
    /// # Errors
    /// `Io`; `BadInput` for terms of 4 GiB or more.
    pub(super) fn finish(mut self, file: &mut PartWriter, runs: &mut RunFile) -> Result<PartEntry> {
        let mut maps = MapsWriter::default();
        if self.runs.is_empty() {
            self.take_sorted(|term, rows| maps.add(file, term, rows))?;
        } else {
            self.spill(runs)?;
            runs.merge(&self.runs, |term, rows| maps.add(file, term, rows))?;
        }
        maps.finish(file)
    }
}

/// Terms that are written in their order, in maps.
struct MapsWriter {
    map: MapBuilder<Vec<u8>>,
    /// Terms of the map, and their bytes.
    count: usize,
    bytes: usize,
    /// A text that no term of the map is below, and all terms before it are.
    first: Vec<u8>,
    /// The last term in a map.
    last: Vec<u8>,
    /// A term that may have more rows, and its rows so far; none at the beginning.
    term: Vec<u8>,
    rows: Vec<u32>,
    /// Maps that are whole, with `first` of each.
    maps: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Default for MapsWriter {
    fn default() -> MapsWriter {
        MapsWriter {
            map: MapBuilder::memory(),
            count: 0,
            bytes: 0,
            first: Vec::new(),
            last: Vec::new(),
            term: Vec::new(),
            rows: Vec::new(),
            maps: Vec::new(),
        }
    }
}

impl MapsWriter {
    /// Adds rows of a term that is not below those before it.
    fn add(&mut self, file: &mut PartWriter, term: &[u8], rows: &[u32]) -> Result<()> {
        if self.term != term {
            self.end_term(file)?;
            self.term.clear();
            self.term.extend(term);
        }
        self.rows.extend(rows);
        Ok(())
    }

    fn end_term(&mut self, file: &mut PartWriter) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if self.count == MAP_TERMS || self.bytes > MAP_BYTES {
            self.end_map()?;
        }
        if self.count == 0 {
            self.first = separator(&self.last, &self.term).to_vec();
        }
        let code = bitmaps::write(file, &self.rows)?;
        self.rows.clear();
        self.map.insert(&self.term, code).map_err(|e| unsorted(&e))?;
        self.count += 1;
        self.bytes += self.term.len();
        self.last.clone_from(&self.term);
        Ok(())
    }

    fn end_map(&mut self) -> Result<()> {
        let map = std::mem::replace(&mut self.map, MapBuilder::memory());
        (self.count, self.bytes) = (0, 0);
        let map = map.into_inner().map_err(|e| unsorted(&e))?;
        self.maps.push((std::mem::take(&mut self.first), map));
        Ok(())
    }

    fn finish(mut self, file: &mut PartWriter) -> Result<PartEntry> {
        self.end_term(file)?;
        if self.count > 0 {
            self.end_map()?;
        }
        let mut table = Vec::new();
        for (first, map) in self.maps {
            table.extend(file.part(&map)?.to_le_bytes());
            table.extend((map.len() as u32).to_le_bytes());
            table.extend((first.len() as u32).to_le_bytes());
            table.extend(first);
        }
        Ok(PartEntry { place: file.part(&table)?, bytes: table.len() as u64 })
    }
}

/// The shortest beginning of `first` that is beyond `before`, which is below `first`.
fn separator<'a>(before: &[u8], first: &'a [u8]) -> &'a [u8] {
    let same = before.iter().zip(first).take_while(|(one, two)| one == two).count();
    &first[..first.len().min(same + 1)]
}

/// Terms are sorted, so a map never refuses one.
fn unsorted(e: &fst::Error) -> Error {
    Error::corrupt(format!("terms of an index cannot be written: {e}; nothing is kept"))
}

/// Where a map is.
struct Place {
    place: u64,
    bytes: u32,
    /// No term of the map is below, and all terms of maps before are.
    first: Box<[u8]>,
}

/// Terms of a field.
pub(super) struct Terms {
    form: Form,
    places: Vec<Place>,
    /// All maps, or none.
    resident: Vec<Map<Vec<u8>>>,
}

impl Terms {
    pub(super) fn open(file: &PartFile, entry: PartEntry, form: Form, what: &str) -> Result<Terms> {
        let table = file.part_of(entry.place, entry.bytes, what)?;
        let places = places(&table).ok_or_else(|| file.damaged(what, "its table cannot be"))?;
        let mut own = Terms { form, places, resident: Vec::new() };
        if own.places.iter().map(|map| u64::from(map.bytes)).sum::<u64>() <= RESIDENT_BYTES {
            let mut window = Window::default();
            let maps = (0..own.places.len()).map(|at| own.read(file, at, &mut window, what));
            own.resident = maps.collect::<Result<_>>()?;
        }
        Ok(own)
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        let place = |map: &Place| size_of::<Place>() + map.first.len();
        let map = |map: &Map<Vec<u8>>| size_of::<Map<Vec<u8>>>() + map.as_fst().size();
        self.places.iter().map(place).sum::<usize>() + self.resident.iter().map(map).sum::<usize>()
    }

    fn read(&self, file: &PartFile, at: usize, window: &mut Window, what: &str) -> Result<Map<Vec<u8>>> {
        let bytes = file.part_within(self.places[at].place, window, what)?;
        let unreadable = |e| file.damaged(what, &format!("its terms cannot be read: {e}"));
        let map = Map::new(bytes).map_err(unreadable)?;
        // The library trusts what it reads, so its own checksum is compared, too.
        map.as_fst().verify().map_err(unreadable)?;
        Ok(map)
    }

    /// The codes of these strings, of those that are there.
    pub(super) fn codes_of<'t>(
        &self,
        file: &PartFile,
        texts: impl IntoIterator<Item = &'t str>,
        what: &str,
    ) -> Result<Vec<Code>> {
        self.codes_of_terms(file, texts.into_iter().map(|text| self.form.term(text)), what)
    }

    /// The codes of these terms, of those that are there. Terms of one map stand together.
    pub(super) fn codes_of_terms<'t>(
        &self,
        file: &PartFile,
        terms: impl IntoIterator<Item = Cow<'t, [u8]>>,
        what: &str,
    ) -> Result<Vec<Code>> {
        let mut codes = Vec::new();
        let mut window = Window::default();
        let mut last: Option<(usize, Map<Vec<u8>>)> = None;
        for term in terms {
            let Some(at) = self.places.partition_point(|map| *map.first <= *term).checked_sub(1) else {
                continue;
            };
            let map = match (self.resident.get(at), &mut last) {
                (Some(map), _) => map,
                (None, Some((own, map))) if *own == at => &*map,
                (None, last) => &last.insert((at, self.read(file, at, &mut window, what)?)).1,
            };
            codes.extend(guarded(file, what, || map.get(&*term))?);
        }
        Ok(codes)
    }

    /// Calls `each` with terms and codes from a term on, until it breaks.
    fn scan(
        &self,
        file: &PartFile,
        from: &[u8],
        what: &str,
        mut each: impl FnMut(&[u8], Code) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut window = Window::default();
        let start = self.places.partition_point(|map| *map.first <= *from).saturating_sub(1);
        for at in start..self.places.len() {
            let read;
            let map = match self.resident.get(at) {
                Some(map) => map,
                None => {
                    read = self.read(file, at, &mut window, what)?;
                    &read
                }
            };
            let flow = guarded(file, what, || {
                let mut terms = map.range().ge(from).into_stream();
                while let Some((term, code)) = terms.next() {
                    each(term, code)?;
                }
                ControlFlow::Continue(())
            });
            if flow?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Codes of the strings that begin with `prefix`.
    pub(super) fn with_prefix(&self, file: &PartFile, prefix: &str, what: &str) -> Result<Vec<Code>> {
        let mut codes = Vec::new();
        // UUIDs in lower case are in the order of their strings.
        if self.form == Form::Uuid {
            self.scan(file, &uuid_beginning(prefix), what, |term, code| {
                let is_uuid = term.first() == Some(&0);
                match self.form.text(term).filter(|_| is_uuid) {
                    Some(text) if text.starts_with(prefix) => codes.push(code),
                    Some(text) if *text < *prefix => {}
                    _ => return ControlFlow::Break(()),
                }
                ControlFlow::Continue(())
            })?;
        }
        let beginning = match self.form {
            Form::Plain => prefix.as_bytes().to_vec(),
            Form::Uuid => [&[1], prefix.as_bytes()].concat(),
        };
        self.scan(file, &beginning, what, |term, code| {
            if !term.starts_with(&beginning) {
                return ControlFlow::Break(());
            }
            codes.push(code);
            ControlFlow::Continue(())
        })?;
        Ok(codes)
    }

    /// Codes of the strings of which `decide` holds; looks at all.
    pub(super) fn such_that(
        &self,
        file: &PartFile,
        what: &str,
        decide: impl Fn(&str) -> bool,
    ) -> Result<Vec<Code>> {
        let mut codes = Vec::new();
        self.scan(file, &[], what, |term, code| {
            if self.form.text(term).is_some_and(|text| decide(&text)) {
                codes.push(code);
            }
            ControlFlow::Continue(())
        })?;
        Ok(codes)
    }

    /// The codes of all terms.
    pub(super) fn codes(&self, file: &PartFile, what: &str) -> Result<Vec<Code>> {
        let mut codes = Vec::new();
        self.scan(file, &[], what, |_, code| {
            codes.push(code);
            ControlFlow::Continue(())
        })?;
        Ok(codes)
    }
}

/// The library panics on maps that were made to be wrong; they are damage.
fn guarded<T>(file: &PartFile, what: &str, work: impl FnOnce() -> T) -> Result<T> {
    // Maps are read only, and what `work` gathers is dropped with the error.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| file.damaged(what, "its terms cannot be"))
}

/// A term that no UUID with this prefix is below: its whole bytes.
fn uuid_beginning(prefix: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        prefix.chars().filter(|c| *c != '-').map_while(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    let pairs = digits.chunks_exact(2).take(16);
    [0].into_iter().chain(pairs.map(|pair| pair[0] << 4 | pair[1])).collect()
}

/// The maps of a table.
fn places(mut table: &[u8]) -> Option<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    while !table.is_empty() {
        let (place, bytes, length) = (number(table, 0)?, number32(table, 8)?, number32(table, 12)?);
        let (first, rest) = table.get(HEAD_BYTES..)?.split_at_checked(length as usize)?;
        if places.last().is_some_and(|last| *last.first >= *first) {
            return None;
        }
        places.push(Place { place, bytes, first: first.into() });
        table = rest;
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_uuids_are_short_and_come_back() {
        let uuid = "f47ac10b-58cc-4372-a567-0e02b2c3d479";
        for (text, bytes) in [(uuid, 17), (&*uuid.to_uppercase(), 37), ("x", 2), ("", 1)] {
            let term = Form::Uuid.term(text);
            assert_eq!(term.len(), bytes);
            assert_eq!(Form::Uuid.text(&term).unwrap(), text);
        }
        for (prefix, beginning) in [
            ("", &[0][..]),
            ("f", &[0]),
            ("F47", &[0, 0xf4]),
            (&uuid[..11], &[0, 0xf4, 0x7a, 0xc1, 0x0b, 0x58]),
        ] {
            assert_eq!(uuid_beginning(prefix), beginning);
        }
        assert_eq!(uuid_beginning(uuid).len(), 17);
        assert_eq!(
            (separator(b"ab", b"abcd"), separator(b"", b""), separator(b"abx", b"acy")),
            (&b"abc"[..], &b""[..], &b"ac"[..])
        );
        assert_eq!(Form::Uuid.text(&[2]), None);
        assert_eq!(Form::Uuid.text(&[0, 1]), None);
    }
}

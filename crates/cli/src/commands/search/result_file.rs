//! Writes results in the layout that the suffix of the file names. Each file appears atomically. `-` is stdout, which
//! gets JSON lines.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use stratann_engine::search::Answers;
use stratann_node::collections::Hit;
use stratann_node::rows::ExternalId;
use stratann_storage::output::{AtomicFile, OutputPath};
use stratann_storage::{Error, Result};

use super::answer::{Answer, TextField};
use crate::output::print_escaped;

/// Bytes of the counts before the ids of `.ibin` and `.i64bin`.
const HEADER: u64 = 8;
/// Bytes of an `.npy` header: a multiple of 64, as NumPy aligns data.
const NPY_HEADER: usize = 128;

/// Layout of a result file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// u32 queries, u32 k, u32 ids, f32 distances (big-ann-benchmarks).
    Ibin,
    /// u32 queries, u32 k, i64 ids, f32 distances.
    I64bin,
    /// u64 ids as an array of queries × k; f32 distances in a second file.
    Npy,
    /// A JSON object for each query.
    Jsonl,
    /// A line for each result.
    Csv,
}

impl Layout {
    /// Reads the layout off the suffix; a name without one is `.ibin`.
    ///
    /// # Errors
    /// `BadInput` for another suffix.
    fn of(path: &Path) -> Result<Layout> {
        let suffix = path.extension().map(|s| s.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            None | Some("ibin") => Ok(Layout::Ibin),
            Some("i64bin") => Ok(Layout::I64bin),
            Some("npy") => Ok(Layout::Npy),
            Some("jsonl") => Ok(Layout::Jsonl),
            Some("csv") => Ok(Layout::Csv),
            Some(_) => Err(Error::bad_input(format!(
                "{}: unknown suffix of a result file; use .ibin, .i64bin, .npy, .jsonl or .csv",
                path.display()
            ))),
        }
    }

    /// Largest id.
    fn id_max(self) -> u64 {
        match self {
            Layout::Ibin => u64::from(u32::MAX),
            Layout::I64bin => i64::MAX as u64,
            Layout::Npy | Layout::Jsonl | Layout::Csv => u64::MAX,
        }
    }

    /// Bytes of an id in a binary layout.
    fn id_bytes(self) -> u64 {
        if self == Layout::Ibin { 4 } else { 8 }
    }
}

/// Checked paths of a result file.
#[derive(Debug)]
pub(super) struct ResultPath {
    layout: Layout,
    /// `None` for stdout.
    main: Option<OutputPath>,
    /// Distances beside `.npy`.
    distances: Option<OutputPath>,
}

impl ResultPath {
    /// Checks the paths before any work starts.
    ///
    /// # Errors
    /// An unknown suffix, and as [`OutputPath::check`].
    pub(super) fn check(path: &Path, force: bool, inputs: &[&Path]) -> Result<ResultPath> {
        if is_stdout(path) {
            return Ok(ResultPath { layout: Layout::Jsonl, main: None, distances: None });
        }
        let main = Some(OutputPath::check(path, force, inputs)?);
        let layout = Layout::of(path)?;
        let beside = (layout == Layout::Npy).then(|| distances_path(path));
        let distances = beside.map(|path| OutputPath::check(&path, force, inputs)).transpose()?;
        Ok(ResultPath { layout, main, distances })
    }

    /// Refuses a layout that ids of `id_bytes` bytes do not fit in.
    ///
    /// # Errors
    /// `BadInput` for `.ibin` and ids of more than 32 bits.
    pub(super) fn check_ids(&self, id_bytes: usize) -> Result<()> {
        match &self.main {
            Some(main) if self.layout == Layout::Ibin && id_bytes > 4 => Err(Error::bad_input(format!(
                "{}: ids of this index need more than the 32 bits of .ibin; name the file {}",
                main.path().display(),
                main.path().with_extension("i64bin").display()
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a layout that has no place for payloads, which `option` asks for.
    ///
    /// # Errors
    /// `BadInput` for a layout of numbers.
    pub(super) fn check_payloads(&self, option: &str) -> Result<()> {
        match (&self.main, self.layout) {
            (Some(main), Layout::Ibin | Layout::I64bin | Layout::Npy) => Err(Error::bad_input(format!(
                "{}: this layout holds numbers alone; name the file .jsonl or .csv, or leave {option} out",
                main.path().display()
            ))),
            _ => Ok(()),
        }
    }
}

/// What a file is named to print on stdout.
const STDOUT: &str = "-";

/// Whether results go to stdout, where the report is not printed then.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new(STDOUT)
}

/// `out.distances.npy` for `out.npy`.
fn distances_path(path: &Path) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().to_os_string();
    name.push(".distances.npy");
    path.with_file_name(name)
}

/// Where the results go.
enum To {
    File(Box<AtomicFile>),
    Stdout,
}

impl To {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            To::File(file) => file.write(bytes),
            To::Stdout => print_escaped(&String::from_utf8_lossy(bytes)),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        match self {
            To::File(file) => file.write_at(bytes, offset),
            // Stdout gets lines alone.
            To::Stdout => Err(Error::bad_input("stdout gets JSON lines alone; name a file")),
        }
    }

    fn name(&self) -> String {
        match self {
            To::File(file) => file.path().display().to_string(),
            To::Stdout => "standard output".into(),
        }
    }
}

/// What lines have beside ids and distances.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extras<'a> {
    /// Whether they have payloads.
    pub(super) payloads: bool,
    /// The field whose text they have.
    pub(super) text: Option<&'a TextField>,
}

/// A result file that appears when it is complete.
pub(super) struct ResultFile {
    layout: Layout,
    to: To,
    distances: Option<AtomicFile>,
    queries: usize,
    k: usize,
    /// Text of the results on their way to the file.
    text: String,
}

impl ResultFile {
    /// Creates a file for `queries × k` results.
    pub(super) fn create(
        to: &ResultPath,
        (queries, k): (usize, usize),
        extras: Extras<'_>,
    ) -> Result<ResultFile> {
        let mut own = match &to.main {
            Some(main) => To::File(Box::new(main.create()?)),
            None => To::Stdout,
        };
        let distances = to.distances.as_ref().map(OutputPath::create).transpose()?;
        match to.layout {
            Layout::Ibin | Layout::I64bin => {
                let counts = [queries as u32, k as u32];
                own.write_at(bytemuck::cast_slice(&counts), 0)?;
            }
            Layout::Npy => own.write_at(&npy_header("<u8", queries, k), 0)?,
            Layout::Csv => own.write(csv_header(extras).as_bytes())?,
            Layout::Jsonl => {}
        }
        if let Some(distances) = &distances {
            distances.write_at(&npy_header("<f4", queries, k), 0)?;
        }
        Ok(ResultFile { layout: to.layout, to: own, distances, queries, k, text: String::new() })
    }

    /// Writes the results of the queries from `first` on, after those of all queries before.
    ///
    /// # Errors
    /// When an id is too large for the layout, or writing fails.
    pub(super) fn put(&mut self, first: usize, answers: &Answers) -> Result<()> {
        if matches!(self.layout, Layout::Jsonl | Layout::Csv) {
            return self.put_text(first, answers);
        }
        self.refuse_long_ids(first, answers)?;
        self.put_binary(first, &answers.ids, &answers.distances)
    }

    /// Writes k ids and distances of each query.
    fn put_binary(&mut self, first: usize, ids: &[u64], distances: &[f32]) -> Result<()> {
        let start = if self.layout == Layout::Npy { NPY_HEADER as u64 } else { HEADER };
        let (cell, id_bytes) = ((first * self.k) as u64, self.layout.id_bytes());
        if self.layout == Layout::Ibin {
            // Where there is no result the distance is infinite, and the id means nothing.
            let narrow: Vec<u32> = ids.iter().map(|&id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
            self.to.write_at(bytemuck::cast_slice(&narrow), start + cell * id_bytes)?;
        } else {
            self.to.write_at(bytemuck::cast_slice(ids), start + cell * id_bytes)?;
        }
        let bytes = bytemuck::cast_slice(distances);
        match &self.distances {
            Some(file) => file.write_at(bytes, NPY_HEADER as u64 + cell * 4),
            None => {
                let ids_bytes = (self.queries * self.k) as u64 * id_bytes;
                self.to.write_at(bytes, start + ids_bytes + cell * 4)
            }
        }
    }

    fn refuse_long_ids(&self, first: usize, answers: &Answers) -> Result<()> {
        let most = self.layout.id_max();
        let results =
            (0..answers.counts.len()).flat_map(|at| answers.results(at).map(move |hit| (at, hit.0)));
        let Some((at, id)) = results.into_iter().find(|result| result.1 > most) else { return Ok(()) };
        let other = if i64::try_from(id).is_ok() { ".i64bin" } else { ".npy" };
        Err(Error::bad_input(format!(
            "{}: id {id}, a result of query {}, is too large for this layout; name the file {other}",
            self.to.name(),
            first + at
        )))
    }

    fn put_text(&mut self, first: usize, answers: &Answers) -> Result<()> {
        self.text.clear();
        for (at, query) in (0..answers.counts.len()).zip(first..) {
            if self.layout == Layout::Jsonl {
                let (ids, distances): (Vec<u64>, Vec<f32>) = answers.results(at).unzip();
                let line = serde_json::json!({ "query": query, "ids": ids, "distances": distances });
                let _ = writeln!(self.text, "{line}");
                continue;
            }
            for (rank, (id, distance)) in answers.results(at).enumerate() {
                let _ = writeln!(self.text, "{query},{rank},{id},{distance}");
            }
        }
        self.to.write(self.text.as_bytes())
    }

    /// Writes the nearest points of each query from `first` on, after those of all queries before.
    ///
    /// # Errors
    /// A layout that takes numbers alone, and an id that is none; as [`ResultFile::put`].
    pub(super) fn put_points(&mut self, first: usize, hits: &[Vec<Hit>], extras: Extras<'_>) -> Result<()> {
        self.text.clear();
        match self.layout {
            Layout::Jsonl => self.push_lines(first, hits, extras)?,
            Layout::Csv => self.push_cells(first, hits, extras),
            Layout::Ibin | Layout::I64bin | Layout::Npy => {
                let (mut ids, mut distances) = (Vec::new(), Vec::new());
                for (hits, query) in hits.iter().zip(first..) {
                    for hit in hits {
                        ids.push(self.number(query, &hit.id)?);
                        distances.push(hit.distance);
                    }
                    ids.extend(std::iter::repeat_n(u64::MAX, self.k.saturating_sub(hits.len())));
                    distances.extend(std::iter::repeat_n(f32::INFINITY, self.k.saturating_sub(hits.len())));
                }
                return self.put_binary(first, &ids, &distances);
            }
        }
        self.to.write(self.text.as_bytes())
    }

    fn push_lines(&mut self, first: usize, hits: &[Vec<Hit>], extras: Extras<'_>) -> Result<()> {
        for (hits, query) in hits.iter().zip(first..) {
            let line = serde_json::to_string(&Answer::of(query, hits, extras));
            self.text +=
                &line.map_err(|e| Error::corrupt(format!("a payload is no JSON: {e}; verify it")))?;
            self.text.push('\n');
        }
        Ok(())
    }

    fn push_cells(&mut self, first: usize, hits: &[Vec<Hit>], extras: Extras<'_>) {
        for (hits, query) in hits.iter().zip(first..) {
            for (rank, hit) in hits.iter().enumerate() {
                let _ = write!(self.text, "{query},{rank},{},{}", cell(&hit.id.to_string()), hit.distance);
                if let Some(field) = extras.text {
                    let _ = write!(self.text, ",{}", cell(&field.of(hit).unwrap_or_default()));
                }
                if extras.payloads {
                    let json = String::from_utf8_lossy(hit.payload.as_deref().unwrap_or_default());
                    let _ = write!(self.text, ",{}", cell(&json));
                }
                self.text.push('\n');
            }
        }
    }

    /// An id as a number that the layout takes.
    fn number(&self, query: usize, id: &ExternalId) -> Result<u64> {
        let refused = |why: &str, name: &str| {
            Err(Error::bad_input(format!(
                "{}: id {id}, a result of query {query}, {why}; name the file {name}",
                self.to.name()
            )))
        };
        let ExternalId::Number(number) = *id else { return refused("is no number", ".jsonl or .csv") };
        if number <= self.layout.id_max() {
            return Ok(number);
        }
        let other = if i64::try_from(number).is_ok() { ".i64bin" } else { ".npy" };
        refused("is too large for this layout", other)
    }

    /// Publishes the file under its final name, after the distances beside it.
    pub(super) fn commit(self) -> Result<()> {
        self.distances.map_or(Ok(()), AtomicFile::commit)?;
        match self.to {
            To::File(file) => file.commit(),
            To::Stdout => Ok(()),
        }
    }
}

/// The first line of a `.csv` file.
fn csv_header(extras: Extras<'_>) -> String {
    let text = if extras.text.is_some() { ",text" } else { "" };
    let payload = if extras.payloads { ",payload" } else { "" };
    format!("query,rank,id,distance{text}{payload}\n")
}

/// A text as a cell of a line, in quotes where it has what separates cells or lines.
fn cell(text: &str) -> Cow<'_, str> {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")).into(),
        false => text.into(),
    }
}

/// The header of an array of `rows × columns` in `.npy` version 1.
fn npy_header(dtype: &str, rows: usize, columns: usize) -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((NPY_HEADER as u16 - 10).to_le_bytes());
    let fields = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    header.extend(fields.as_bytes());
    header.resize(NPY_HEADER - 1, b' ');
    header.push(b'\n');
    header
}

//! Evaluates a predicate on all rows of a segment.
//!
//! Each part of a predicate has rows that match for *sure*, and *open* ones that only their payload can decide. Both go
//! through `and`, `or` and `not`, so that a negated condition is right where its index knows only a part.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use roaring::RoaringBitmap;
use stratann_core::sieve::Sieve;
use stratann_storage::Result;

use super::PayloadIndex;
use super::answers::{Answers, Rows};
use super::bitmaps::{self, Reader};
use crate::id::IdValue;
use crate::path::Path;
use crate::predicate::{Leaf, Node, Predicate, Span};
use crate::schema::IndexKind;

/// Answers about a segment that payloads do not have.
pub trait RowFacts {
    /// The row of an external id; `None` where the segment has no such id.
    ///
    /// # Errors
    /// As the segment's table of ids has them.
    fn row_of(&self, id: &IdValue) -> Result<Option<u32>>;

    /// Rows with a vector of this name.
    ///
    /// # Errors
    /// As the segment's files have them.
    fn rows_with_vector(&self, name: &str) -> Result<RoaringBitmap>;
}

/// A condition that no index answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unindexed {
    /// The field.
    pub field: Path,
    /// An index that would answer it; `None` where payloads must be read in any case.
    pub kind: Option<IndexKind>,
}

impl fmt::Display for Unindexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{} (create an index of kind {})", self.field, kind.name()),
            None => write!(f, "{} (payloads are read)", self.field),
        }
    }
}

/// Rows that match.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Rows of the segment.
    pub rows: u32,
    /// Rows that match for sure.
    pub sure: RoaringBitmap,
    /// Other rows, which match where their payload does; see [`Evaluated::decide`].
    pub open: RoaringBitmap,
    /// Conditions on fields that lack an index, for warnings and for refusal.
    pub unindexed: BTreeSet<Unindexed>,
    pub(super) known: Known,
}

/// What was asked about points.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Rows of ids; those that the segment lacks are left out.
    pub(super) ids: BTreeMap<IdValue, u32>,
    pub(super) vectors: BTreeMap<String, RoaringBitmap>,
}

impl Evaluated {
    /// Whether all rows are decided.
    pub fn is_exact(&self) -> bool {
        self.open.is_empty()
    }

    /// The rows that match, where all are decided; with open rows a superset.
    pub fn superset(&self) -> RoaringBitmap {
        &self.sure | &self.open
    }
}

/// A set of rows of a segment as a sieve.
pub fn sieve_of(segment_rows: u32, matching: &RoaringBitmap) -> Option<Sieve> {
    let full = u64::from(segment_rows);
    if matching.len() == full && matching.max().is_none_or(|row| row < segment_rows) {
        return Some(Sieve::all(segment_rows));
    }
    if matching.max().is_some_and(|row| row >= segment_rows) {
        return None;
    }
    // A list of rows takes more than their bits where more than one row in 32 matches.
    if matching.len() < full / 32 {
        return Sieve::from_sorted(segment_rows, &matching.iter().collect::<Vec<_>>());
    }
    let mut words = vec![0u64; (segment_rows as usize).div_ceil(64)];
    let (mut rows, mut buffer) = (matching.iter(), [0; 1024]);
    loop {
        let some = rows.next_many(&mut buffer);
        if some.is_empty() {
            break;
        }
        some.iter().for_each(|row| words[*row as usize / 64] |= 1 << (row % 64));
    }
    Sieve::from_words(segment_rows, &words)
}

impl PayloadIndex {
    /// The rows of the segment that match a predicate.
    ///
    /// # Errors
    /// `Corrupt` that names file and part for a damaged one; `Io`; what `facts` returns.
    pub fn evaluate(&self, predicate: &Predicate, facts: &dyn RowFacts) -> Result<Evaluated> {
        let mut all = RoaringBitmap::new();
        all.insert_range(0..self.rows);
        let mut known = Known::default();
        known.ask(predicate.node(), facts)?;
        let reader = Reader { file: &self.file, rows: self.rows };
        let mut evaluation = Evaluation { index: self, reader, all, known, unindexed: BTreeSet::new() };
        let Rows { sure, open } = evaluation.node(predicate.node())?;
        let Evaluation { known, unindexed, .. } = evaluation;
        Ok(Evaluated { rows: self.rows, sure, open, unindexed, known })
    }
}

impl Known {
    /// Asks for what a predicate names.
    pub(super) fn ask(&mut self, node: &Node, facts: &dyn RowFacts) -> Result<()> {
        match node {
            Node::All | Node::Nothing => Ok(()),
            Node::And(parts) | Node::Or(parts) | Node::AtLeast(_, parts) => {
                parts.iter().try_for_each(|part| self.ask(part, facts))
            }
            Node::Leaf(Leaf::Nested(_, inner)) | Node::Not(Leaf::Nested(_, inner)) => self.ask(inner, facts),
            Node::Leaf(Leaf::HasId(ids)) | Node::Not(Leaf::HasId(ids)) => ids.iter().try_for_each(|id| {
                self.ids.extend(facts.row_of(id)?.map(|row| (id.clone(), row)));
                Ok(())
            }),
            Node::Leaf(Leaf::HasVector(name)) | Node::Not(Leaf::HasVector(name)) => {
                if !self.vectors.contains_key(name) {
                    self.vectors.insert(name.clone(), facts.rows_with_vector(name)?);
                }
                Ok(())
            }
            Node::Leaf(_) | Node::Not(_) => Ok(()),
        }
    }
}

struct Evaluation<'a> {
    index: &'a PayloadIndex,
    reader: Reader<'a>,
    all: RoaringBitmap,
    known: Known,
    unindexed: BTreeSet<Unindexed>,
}

impl Evaluation<'_> {
    fn node(&mut self, node: &Node) -> Result<Rows> {
        match node {
            Node::All => Ok(Rows::sure(self.all.clone())),
            Node::Nothing => Ok(Rows::sure(RoaringBitmap::new())),
            Node::Leaf(leaf) => self.leaf(leaf),
            Node::Not(leaf) => {
                let rows = self.leaf(leaf)?;
                Ok(Rows { sure: &self.all - rows.possible(), open: rows.open })
            }
            Node::And(parts) => self.and(parts),
            Node::Or(parts) => {
                let mut union = Rows::sure(RoaringBitmap::new());
                for part in parts {
                    union.add(&self.node(part)?);
                }
                Ok(union)
            }
            Node::AtLeast(count, parts) => self.at_least(*count, parts),
        }
    }

    fn and(&mut self, parts: &[Node]) -> Result<Rows> {
        let (mut sure, mut possible) = (self.all.clone(), self.all.clone());
        for part in &self.with_joint_spans(parts) {
            // All parts are evaluated, so that every condition without an index is named.
            let rows = self.node(part)?;
            possible &= rows.possible();
            sure &= rows.sure;
        }
        possible -= &sure;
        Ok(Rows { sure, open: possible })
    }

    /// The parts of an `and`, with one range in place of several ranges of a field that has one value in each row.
    fn with_joint_spans<'n>(&self, parts: &'n [Node]) -> Vec<Cow<'n, Node>> {
        let has_one = |path: &Path| {
            self.index.fields.get(path).is_some_and(|field| bitmaps::is_empty(field.facts.several))
        };
        let (mut numbers, mut dates) = (BTreeMap::new(), BTreeMap::new());
        let mut joined = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Node::Leaf(Leaf::Numbers(path, span)) if has_one(path) => {
                    let own = numbers.entry(path).or_insert(Span { low: None, high: None });
                    *own = own.intersection(span);
                }
                Node::Leaf(Leaf::Dates(path, low, high)) if has_one(path) => {
                    let own = dates.entry(path).or_insert((*low, *high));
                    *own = (own.0.max(*low), own.1.min(*high));
                }
                other => joined.push(Cow::Borrowed(other)),
            }
        }
        let spans = numbers.into_iter().map(|(path, span)| Node::Leaf(Leaf::Numbers(path.clone(), span)));
        joined.extend(spans.map(Cow::Owned));
        joined.extend(dates.into_iter().map(|(path, (low, high))| match low <= high {
            true => Cow::Owned(Node::Leaf(Leaf::Dates(path.clone(), low, high))),
            false => Cow::Owned(Node::Nothing),
        }));
        joined
    }

    fn at_least(&mut self, count: usize, parts: &[Node]) -> Result<Rows> {
        let rows = self.all.len() as usize;
        let (mut sure, mut possible) = (vec![0u32; rows], vec![0u32; rows]);
        for part in parts {
            let rows = self.node(part)?;
            rows.sure.iter().for_each(|row| sure[row as usize] += 1);
            rows.sure.iter().chain(&rows.open).for_each(|row| possible[row as usize] += 1);
        }
        let enough = |counts: &[u32]| -> RoaringBitmap {
            (0..).zip(counts).filter(|(_, own)| **own as usize >= count).map(|(row, _)| row).collect()
        };
        let (sure, mut open) = (enough(&sure), enough(&possible));
        open -= &sure;
        Ok(Rows { sure, open })
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<Rows> {
        match leaf {
            Leaf::HasId(ids) => {
                let rows: RoaringBitmap = ids.iter().filter_map(|id| self.known.ids.get(id)).collect();
                Ok(Rows::sure(rows & &self.all))
            }
            Leaf::HasVector(name) => {
                let rows = self.known.vectors.get(name).map(|rows| rows & &self.all);
                Ok(Rows::sure(rows.unwrap_or_default()))
            }
            Leaf::Nested(path, inner) => {
                let possible = self.of_elements(path, inner)?;
                if possible.is_none() {
                    self.unindexed.insert(Unindexed { field: path.clone(), kind: None });
                }
                Ok(Rows::open(possible.unwrap_or_else(|| self.all.clone())))
            }
            of_field => {
                let Some((path, kind)) = of_field.field() else { return Ok(Rows::open(self.all.clone())) };
                let missing = |kind| Unindexed { field: path.clone(), kind: Some(kind) };
                let Some(field) = self.index.fields.get(path) else {
                    self.unindexed.insert(missing(kind));
                    return Ok(Rows::open(self.all.clone()));
                };
                let what = format!("field {path}");
                let (rows, is_answered) =
                    Answers { field, reader: &self.reader, what: &what }.leaf(of_field, &self.all)?;
                if !is_answered {
                    self.unindexed.insert(missing(kind));
                }
                Ok(rows)
            }
        }
    }

    /// A superset of the rows in which an element of an array holds to a predicate; `None` where no index knows one.
    fn of_elements(&mut self, array: &Path, node: &Node) -> Result<Option<RoaringBitmap>> {
        match node {
            Node::Leaf(leaf) => match leaf.clone().within(array) {
                Ok(leaf) => Ok(Some(self.leaf(&leaf)?.possible())),
                Err(_) => Ok(None),
            },
            Node::And(parts) => {
                let mut possible: Option<RoaringBitmap> = None;
                for part in parts {
                    if let Some(rows) = self.of_elements(array, part)? {
                        possible = Some(possible.map_or_else(|| rows.clone(), |own| own & &rows));
                    }
                }
                Ok(possible)
            }
            Node::Or(parts) => {
                let mut union = RoaringBitmap::new();
                for part in parts {
                    match self.of_elements(array, part)? {
                        Some(rows) => union |= rows,
                        None => return Ok(None),
                    }
                }
                Ok(Some(union))
            }
            Node::All | Node::Nothing | Node::Not(_) | Node::AtLeast(..) => Ok(None),
        }
    }
}

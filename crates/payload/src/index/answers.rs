//! Answers of one indexed field.

use std::collections::BTreeSet;

use roaring::RoaringBitmap;
use stratann_storage::Result;

use super::bitmaps::{Code, Reader};
use super::field::Field;
use super::numbers::{Numbers, date_key, term_of};
use super::terms::Terms;
use crate::number::{Number, NumberKey};
use crate::path::Path;
use crate::predicate::{Leaf, Span};
use crate::scalar::Scalar;
use crate::schema::IndexKind;

/// Rows of a part of a predicate; no row is in both.
pub(super) struct Rows {
    pub(super) sure: RoaringBitmap,
    pub(super) open: RoaringBitmap,
}

impl Rows {
    pub(super) fn sure(sure: RoaringBitmap) -> Rows {
        Rows { sure, open: RoaringBitmap::new() }
    }

    pub(super) fn open(open: RoaringBitmap) -> Rows {
        Rows { sure: RoaringBitmap::new(), open }
    }

    pub(super) fn possible(&self) -> RoaringBitmap {
        &self.sure | &self.open
    }

    pub(super) fn add(&mut self, other: &Rows) {
        self.sure |= &other.sure;
        self.open |= &other.open;
        self.open -= &self.sure;
    }
}

/// One indexed field of an open index.
pub(super) struct Answers<'a> {
    pub(super) field: &'a Field,
    pub(super) reader: &'a Reader<'a>,
    /// The field in errors.
    pub(super) what: &'a str,
}

impl Leaf {
    /// The field of a condition, and the index that answers it.
    pub(super) fn field(&self) -> Option<(&Path, IndexKind)> {
        match self {
            Leaf::Any(path, set) | Leaf::Except(path, set) => {
                let kind = match set.first() {
                    Some(Scalar::Bool(_)) => IndexKind::Bool,
                    Some(Scalar::Number(_)) => IndexKind::Integer,
                    Some(Scalar::Text(_)) | None => IndexKind::Keyword,
                };
                Some((path, kind))
            }
            Leaf::Words(path, _) | Leaf::AnyWord(path, _) | Leaf::Phrase(path, _) => {
                Some((path, IndexKind::Text))
            }
            Leaf::Prefix(path, _) | Leaf::Substring(path, _) => Some((path, IndexKind::Keyword)),
            Leaf::Numbers(path, _) => Some((path, IndexKind::Float)),
            Leaf::Dates(path, ..) => Some((path, IndexKind::Datetime)),
            Leaf::Count(path, ..) | Leaf::Exists(path) | Leaf::IsEmpty(path) | Leaf::IsNull(path) => {
                Some((path, IndexKind::Keyword))
            }
            Leaf::HasId(_) | Leaf::HasVector(_) | Leaf::Nested(..) => None,
        }
    }
}

impl Answers<'_> {
    fn read(&self, code: Code) -> Result<RoaringBitmap> {
        self.reader.read(code, self.what)
    }

    /// Rows of a condition on this field, and whether the field has the index that the condition needs.
    pub(super) fn leaf(&self, leaf: &Leaf, all: &RoaringBitmap) -> Result<(Rows, bool)> {
        let facts = &self.field.facts;
        let sure = |rows: RoaringBitmap| Ok((Rows::sure(rows), true));
        match leaf {
            Leaf::Any(_, set) => self.any(set),
            Leaf::Except(_, set) => self.except(set),
            Leaf::Words(_, words) => match self.all_words(words)? {
                None => self.strings(),
                // The index does not say which of several strings of a row has a word.
                Some(rows) => {
                    let open = &rows & self.read(facts.several)?;
                    Ok((Rows { sure: rows - &open, open }, true))
                }
            },
            Leaf::Phrase(_, words) => match self.all_words(words)? {
                None => self.strings(),
                Some(rows) => Ok((Rows::open(rows), true)),
            },
            Leaf::AnyWord(_, words) => match &self.field.text {
                None => self.strings(),
                Some(terms) => sure(self.union(&terms.codes_of(
                    self.reader.file,
                    words.iter().map(String::as_str),
                    self.what,
                )?)?),
            },
            Leaf::Prefix(_, prefix) => match self.keywords() {
                None => self.strings(),
                Some(terms) => {
                    sure(self.union(&terms.with_prefix(self.reader.file, prefix, self.what)?)?)
                }
            },
            Leaf::Substring(_, part) if part.is_empty() => sure(self.read(facts.strings)?),
            Leaf::Substring(_, part) => match self.keywords() {
                None => self.strings(),
                Some(terms) => sure(self.union(&terms.such_that(
                    self.reader.file,
                    self.what,
                    |text| text.contains(part),
                )?)?),
            },
            Leaf::Numbers(_, span) => {
                let limit =
                    |limit: Option<(Number, bool)>| limit.map(|(number, is_in)| (number.key(), is_in));
                let span = Span { low: limit(span.low), high: limit(span.high) };
                self.span(self.numbers(), facts.numbers, &span)
            }
            Leaf::Dates(_, low, high) => {
                let span = Span { low: Some((date_key(*low), true)), high: Some((date_key(*high), true)) };
                self.span(self.field.dates.as_ref(), facts.strings, &span)
            }
            Leaf::Count(_, low, high) => Ok((self.count(*low, *high, all)?, true)),
            Leaf::Exists(_) => sure(self.read(facts.exists)?),
            Leaf::IsEmpty(_) => sure(all - self.read(facts.filled)?),
            Leaf::IsNull(_) => sure(self.read(facts.null)?),
            Leaf::HasId(_) | Leaf::HasVector(_) | Leaf::Nested(..) => Ok((Rows::open(all.clone()), false)),
        }
    }

    fn keywords(&self) -> Option<&Terms> {
        self.field.keyword.as_ref().or(self.field.uuid.as_ref())
    }

    fn numbers(&self) -> Option<&Numbers> {
        self.field.floats.as_ref().or(self.field.integers.as_ref())
    }

    fn union(&self, codes: &[Code]) -> Result<RoaringBitmap> {
        self.reader.union(codes, self.what)
    }

    /// Rows with strings, which are open; answered only where there are none.
    fn strings(&self) -> Result<(Rows, bool)> {
        self.open(self.field.facts.strings)
    }

    fn open(&self, code: Code) -> Result<(Rows, bool)> {
        let open = self.read(code)?;
        let is_answered = open.is_empty();
        Ok((Rows::open(open), is_answered))
    }

    fn span(&self, numbers: Option<&Numbers>, typed: Code, span: &Span<NumberKey>) -> Result<(Rows, bool)> {
        match numbers {
            Some(numbers) => Ok((Rows::sure(numbers.rows_in(self.reader, span, self.what)?), true)),
            None => self.open(typed),
        }
    }

    /// Rows whose strings have all of these words, in one string or in several; `None` without an index of words.
    fn all_words<'w>(&self, words: impl IntoIterator<Item = &'w String>) -> Result<Option<RoaringBitmap>> {
        let Some(terms) = &self.field.text else { return Ok(None) };
        let mut rows: Option<RoaringBitmap> = None;
        for word in words {
            let codes = terms.codes_of(self.reader.file, [word.as_str()], self.what)?;
            let own = self.union(&codes)?;
            rows = Some(rows.map_or_else(|| own.clone(), |rows| rows & &own));
            if rows.as_ref().is_some_and(RoaringBitmap::is_empty) {
                break;
            }
        }
        Ok(Some(rows.unwrap_or_default()))
    }

    fn any(&self, set: &BTreeSet<Scalar>) -> Result<(Rows, bool)> {
        let (mut found, mut is_answered) = (Rows::sure(RoaringBitmap::new()), true);
        for values in by_type(set) {
            let (rows, is_known) = self.equal(&values)?;
            found.add(&rows);
            is_answered &= is_known;
        }
        Ok((found, is_answered))
    }

    /// Rows with one of these values, which are of one type.
    fn equal(&self, values: &[&Scalar]) -> Result<(Rows, bool)> {
        let facts = &self.field.facts;
        let sure = |rows: RoaringBitmap| Ok((Rows::sure(rows), true));
        match values.first() {
            None => sure(RoaringBitmap::new()),
            Some(Scalar::Bool(_)) => match &self.field.bools {
                None => self.open(facts.bools),
                Some(bools) => {
                    let code = |value: &&Scalar| match value {
                        Scalar::Bool(true) => bools.yes,
                        _ => bools.no,
                    };
                    sure(self.union(&values.iter().map(code).collect::<Vec<_>>())?)
                }
            },
            Some(Scalar::Text(_)) => match self.keywords() {
                None => self.strings(),
                Some(terms) => {
                    let texts = values.iter().filter_map(|value| match value {
                        Scalar::Text(text) => Some(text.as_str()),
                        _ => None,
                    });
                    sure(self.union(&terms.codes_of(self.reader.file, texts, self.what)?)?)
                }
            },
            Some(Scalar::Number(_)) => {
                let keys = values.iter().filter_map(|value| match value {
                    Scalar::Number(number) => Some(number.key()),
                    _ => None,
                });
                if let Some(terms) = &self.field.integer_terms {
                    let keys = keys.map(|key| term_of(key).to_vec().into());
                    return sure(self.union(&terms.codes_of_terms(self.reader.file, keys, self.what)?)?);
                }
                let Some(numbers) = self.numbers() else { return self.open(facts.numbers) };
                sure(numbers.rows_of(self.reader, keys, self.what)?)
            }
        }
    }

    /// Rows with a value that is neither null nor one of these. A row with several values, one of which is in the set,
    /// may have another one.
    fn except(&self, set: &BTreeSet<Scalar>) -> Result<(Rows, bool)> {
        let facts = &self.field.facts;
        let several = self.read(facts.several)?;
        let (mut found, mut is_answered) = (Rows::sure(self.read(facts.others)?), true);
        for (values, typed) in by_type(set).into_iter().zip([facts.bools, facts.numbers, facts.strings]) {
            let typed = self.read(typed)?;
            let (inside, is_known) = self.equal(&values)?;
            let sure = &typed - inside.possible();
            // Open rows may have another value; sure ones only where they have several.
            let open = (inside.sure & &several) | inside.open;
            found.add(&Rows { sure, open: open & typed });
            is_answered &= is_known;
        }
        Ok((found, is_answered))
    }

    /// Rows with so many values. Those of rows with more than one are not counted.
    fn count(&self, low: u64, high: u64, all: &RoaringBitmap) -> Result<Rows> {
        let facts = &self.field.facts;
        let (filled, several) = (self.read(facts.filled)?, self.read(facts.several)?);
        let mut found = Rows::sure(RoaringBitmap::new());
        let has = |count: u64| (low..=high).contains(&count);
        if has(0) {
            found.sure |= all - &filled;
        }
        if has(1) {
            found.sure |= &filled - &several;
        }
        if low <= 2 && high == u64::MAX {
            found.sure |= several;
        } else if high >= 2 {
            found.open |= several;
        }
        Ok(found)
    }
}

/// Values by type: booleans, numbers, strings.
fn by_type(set: &BTreeSet<Scalar>) -> [Vec<&Scalar>; 3] {
    let mut parts: [Vec<&Scalar>; 3] = Default::default();
    for value in set {
        let at = match value {
            Scalar::Bool(_) => 0,
            Scalar::Number(_) => 1,
            Scalar::Text(_) => 2,
        };
        parts[at].push(value);
    }
    parts
}

//! An indexed field of an open index.

use stratann_storage::Result;

use super::bitmaps::Reader;
use super::numbers::Numbers;
use super::terms::{Form, Terms};
use super::{Bools, Facts, FieldEntry};
use crate::schema::IndexKind;
use crate::stored::PartFile;

/// An indexed field.
pub(super) struct Field {
    pub(super) facts: Facts,
    pub(super) keyword: Option<Terms>,
    pub(super) uuid: Option<Terms>,
    pub(super) text: Option<Terms>,
    /// Terms are numbers as they are sorted, high bytes first.
    pub(super) integer_terms: Option<Terms>,
    pub(super) integers: Option<Numbers>,
    pub(super) floats: Option<Numbers>,
    pub(super) dates: Option<Numbers>,
    pub(super) bools: Option<Bools>,
}

impl Field {
    pub(super) fn open(file: &PartFile, entry: FieldEntry) -> Result<Field> {
        let what = |kind: IndexKind| format!("field {}, {} index", entry.path, kind.name());
        let terms = |kind: IndexKind, form: Form| {
            let part = entry.terms.get(&kind);
            part.map(|part| Terms::open(file, *part, form, &what(kind))).transpose()
        };
        let numbers = |kind: IndexKind| {
            let part = entry.numbers.get(&kind);
            part.map(|part| Numbers::open(file, *part, &what(kind))).transpose()
        };
        Ok(Field {
            facts: entry.facts,
            keyword: terms(IndexKind::Keyword, Form::Plain)?,
            uuid: terms(IndexKind::Uuid, Form::Uuid)?,
            text: terms(IndexKind::Text, Form::Plain)?,
            integer_terms: terms(IndexKind::Integer, Form::Plain)?,
            integers: numbers(IndexKind::Integer)?,
            floats: numbers(IndexKind::Float)?,
            dates: numbers(IndexKind::Datetime)?,
            bools: entry.bool,
        })
    }
    /// The indexes that it has.
    pub(super) fn kinds(&self) -> impl Iterator<Item = IndexKind> {
        let has = [
            (IndexKind::Keyword, self.keyword.is_some()),
            (IndexKind::Integer, self.integers.is_some()),
            (IndexKind::Float, self.floats.is_some()),
            (IndexKind::Bool, self.bools.is_some()),
            (IndexKind::Datetime, self.dates.is_some()),
            (IndexKind::Uuid, self.uuid.is_some()),
            (IndexKind::Text, self.text.is_some()),
        ];
        has.into_iter().filter(|(_, has)| *has).map(|(kind, _)| kind)
    }

    fn terms(&self) -> impl Iterator<Item = &Terms> {
        [&self.keyword, &self.uuid, &self.text, &self.integer_terms].into_iter().flatten()
    }

    fn numbers(&self) -> impl Iterator<Item = &Numbers> {
        [&self.integers, &self.floats, &self.dates].into_iter().flatten()
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Field>()
            + self.terms().map(Terms::bytes).sum::<usize>()
            + self.numbers().map(Numbers::bytes).sum::<usize>()
    }

    /// Reads everything.
    pub(super) fn verify(&self, file: &PartFile, path: &str, rows: u32) -> Result<()> {
        let (reader, what) = (Reader { file, rows }, format!("field {path}"));
        let f = self.facts;
        let mut codes = vec![f.exists, f.filled, f.null, f.several, f.strings, f.numbers, f.bools, f.others];
        codes.extend(self.bools.iter().flat_map(|bools| [bools.yes, bools.no]));
        for code in codes {
            reader.read(code, &what)?;
        }
        for terms in self.terms() {
            reader.union(&terms.codes(file, &what)?, &what)?;
        }
        self.numbers().try_for_each(|numbers| numbers.verify(&reader, &what))
    }
}

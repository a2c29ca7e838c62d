//! Vectors by name: which ones the points of a collection may have, and how those of a point are stored.
//!
//! | value in the catalogue | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 2. Where the one vector of a point has no name, the value is a [`Spec`] |
//! | 1 | 1 | how many names |
//! | for each name | 1 | bytes of the name, 1 to 255 |
//! | | | the name, in the order of which they are |
//! | | 1 | bytes of its [`Spec`] |
//! | | | the [`Spec`] |
//!
//! The vectors of a point are one *record*: without names its components. With names a `u16`, in which bit n says
//! whether there is a vector of the n-th name, and then the components of those that are there, in the order of names.

use std::borrow::Cow;
use std::sync::Arc;

use super::{NAME_BYTES_MAX, Spec};
use crate::collections::error::{Error, Result};
use crate::segments::VectorShapes;

/// Most names of vectors in a collection.
pub const VECTOR_NAMES_MAX: usize = 16;

const VERSION: u8 = 2;
/// Bytes of a record before its components, where vectors have names.
const BITS: usize = 2;

/// A name of vectors, and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSpec {
    /// The name; empty for the one vector of a point in a collection whose vectors have no names.
    pub name: String,
    /// Shape of the vectors, and how they are compared.
    pub spec: Spec,
}

/// The vectors that points of a collection may have, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Specs(Arc<[NamedSpec]>);

/// One of the names of a collection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorsOf<'a> {
    /// Its place in the order of names.
    pub(crate) name: usize,
    /// What its vectors are.
    pub(crate) spec: &'a Spec,
}

impl From<Spec> for Specs {
    fn from(spec: Spec) -> Specs {
        Specs([NamedSpec { name: String::new(), spec }].into())
    }
}

impl Specs {
    /// Vectors by name, in any order. One alone whose name is empty is a vector without a name.
    ///
    /// # Errors
    /// `BadInput` for no name, more than [`VECTOR_NAMES_MAX`], one that is there twice, is empty beside others, has
    /// more than 255 bytes, control characters or `/`, and for dimensions beyond 1 to 4,096.
    pub fn named(all: impl IntoIterator<Item = (String, Spec)>) -> Result<Specs> {
        let mut all: Vec<_> = all.into_iter().map(|(name, spec)| NamedSpec { name, spec }).collect();
        all.sort_by(|one, two| one.name.cmp(&two.name));
        let specs = Specs(all.into());
        specs.check().map(|()| specs)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::bad_input("there is no name of vectors; give one or more"));
        }
        if self.0.len() > VECTOR_NAMES_MAX {
            return Err(Error::bad_input(format!(
                "{} names of vectors; give at most {VECTOR_NAMES_MAX}",
                self.0.len()
            )));
        }
        if let Some(twice) = self.0.windows(2).find(|two| two[0].name == two[1].name) {
            return Err(Error::bad_input(format!(
                "the name of vectors {:?} is there twice; give each name once",
                twice[0].name
            )));
        }
        for own in self.0.iter() {
            if self.has_names() {
                check_vector_name(&own.name)?;
                own.spec
                    .check()
                    .map_err(|e| Error::bad_input(format!("vector {:?}: {}", own.name, e.message)))?;
            } else {
                own.spec.check()?;
            }
        }
        Ok(())
    }

    /// Whether vectors have names.
    pub fn has_names(&self) -> bool {
        !matches!(&self.0[..], [one] if one.name.is_empty())
    }

    /// All names with what their vectors are, in the order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &NamedSpec> {
        self.0.iter()
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The vectors of a name; without one those of a collection whose vectors have no names.
    ///
    /// # Errors
    /// `BadInput` for a name that is none, and for no name where there are some; the message lists them.
    pub fn find(&self, name: Option<&str>) -> Result<(usize, &Spec)> {
        let wanted = name.unwrap_or_default();
        let at = self.0.iter().position(|own| own.name == wanted);
        if let Some(own) = at.and_then(|at| Some((at, &self.0.get(at)?.spec))) {
            return Ok(own);
        }
        Err(Error::bad_input(match (self.has_names(), name) {
            (false, _) => {
                format!("unknown vector name {wanted:?}: vectors of this collection have no names; give none")
            }
            (true, None | Some("")) => {
                format!("vectors of this collection have names: {}; give one of them", self.listed())
            }
            (true, Some(name)) => format!("unknown vector name {name:?}; there are {}", self.listed()),
        }))
    }

    /// The vectors of a collection whose vectors have no names.
    ///
    /// # Errors
    /// `BadInput` that lists the names there are.
    pub fn only(&self) -> Result<&Spec> {
        self.find(None).map(|(_, spec)| spec)
    }

    fn listed(&self) -> String {
        self.0.iter().map(|own| format!("{:?}", own.name)).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn each(&self) -> impl ExactSizeIterator<Item = VectorsOf<'_>> {
        self.0.iter().enumerate().map(|(name, own)| VectorsOf { name, spec: &own.spec })
    }

    /// The place of a name; `None` for one that is none.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|own| own.name == name)
    }

    /// Most bytes of the vectors of a point.
    pub fn row_bytes(&self) -> usize {
        self.0.iter().map(|own| own.spec.row_bytes()).sum()
    }

    /// Shapes by name, for segments.
    pub(crate) fn shapes(&self) -> VectorShapes {
        VectorShapes {
            shapes: self.0.iter().map(|own| own.spec.shape()).collect(),
            names: self.0.iter().map(|own| own.name.clone()).collect(),
        }
    }

    /// A record of vectors, one for each name.
    pub(crate) fn record<'a>(&self, vectors: &[Option<&'a [u8]>]) -> Cow<'a, [u8]> {
        record(self.has_names(), vectors)
    }

    /// Vectors of a record by the places of their names; `None` for bytes that are none.
    pub(crate) fn vectors_in<'a>(&self, record: &'a [u8]) -> Option<Vec<Option<&'a [u8]>>> {
        if !self.has_names() {
            return (record.len() == self.row_bytes()).then(|| vec![Some(record)]);
        }
        let (bits, mut rest) = record.split_first_chunk::<BITS>()?;
        let bits = u32::from(u16::from_le_bytes(*bits));
        let mut vectors = Vec::with_capacity(self.0.len());
        for (at, own) in self.0.iter().enumerate() {
            let is_there = bits >> at & 1 == 1;
            let (vector, after) = rest.split_at_checked(if is_there { own.spec.row_bytes() } else { 0 })?;
            vectors.push(is_there.then_some(vector));
            rest = after;
        }
        (rest.is_empty() && bits >> self.0.len() == 0).then_some(vectors)
    }

    /// Checks a record that was read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check_record(&self, record: &[u8]) -> Result<(), String> {
        let vectors = self.vectors_in(record).ok_or_else(|| match self.has_names() {
            false => format!("its vector has {} bytes of {}", record.len(), self.row_bytes()),
            true => format!("its {} bytes are not the vectors of these names", record.len()),
        })?;
        for (own, vector) in self.0.iter().zip(vectors) {
            if let Some(at) = vector.and_then(|vector| own.spec.first_not_finite(vector)) {
                return Err(format!("component {at} is NaN or infinite"));
            }
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        if let ([one], false) = (&self.0[..], self.has_names()) {
            return one.spec.encode();
        }
        let mut bytes = vec![VERSION, self.0.len() as u8];
        for own in self.0.iter() {
            for part in [own.name.as_bytes(), &own.spec.encode()] {
                bytes.push(part.len() as u8);
                bytes.extend(part);
            }
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Specs> {
        let Some((&[VERSION, count], mut rest)) = bytes.split_first_chunk::<2>() else {
            return Spec::decode(bytes).map(Specs::from);
        };
        let mut all = Vec::new();
        for _ in 0..count {
            let mut part = || {
                let (length, after) = rest.split_first()?;
                let (part, after) = after.split_at_checked(usize::from(*length))?;
                rest = after;
                Some(part)
            };
            let name = std::str::from_utf8(part()?).ok()?.to_string();
            all.push((name, Spec::decode(part()?)?));
        }
        let is_sorted = all.windows(2).all(|two| two[0].0 < two[1].0);
        let specs = (rest.is_empty() && is_sorted).then(|| Specs::named(all).ok())??;
        specs.has_names().then_some(specs)
    }
}

/// A record of vectors, one for each name.
pub(crate) fn record<'a>(has_names: bool, vectors: &[Option<&'a [u8]>]) -> Cow<'a, [u8]> {
    if !has_names {
        return vectors.iter().copied().flatten().next().unwrap_or_default().into();
    }
    let is_there = |own: &Option<&[u8]>| u16::from(own.is_some());
    let bits: u16 = vectors.iter().zip(0..).map(|(own, at)| is_there(own) << at).sum();
    let bytes = vectors.iter().flatten().map(|vector| vector.len()).sum::<usize>();
    let mut record = Vec::with_capacity(BITS + bytes);
    record.extend(bits.to_le_bytes());
    vectors.iter().flatten().for_each(|vector| record.extend(*vector));
    record.into()
}

fn check_vector_name(name: &str) -> Result<()> {
    let wrong = match name {
        "" => "is empty beside others",
        _ if name.len() > NAME_BYTES_MAX => "is too long",
        _ if name.chars().any(char::is_control) => "has control characters",
        _ if name.contains('/') => "has a slash",
        _ => return Ok(()),
    };
    Err(Error::bad_input(format!(
        "the name of vectors {name:?} {wrong}; give 1 to {NAME_BYTES_MAX} bytes without control characters and /"
    )))
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};

    use super::*;

    fn spec(dim: usize) -> Spec {
        Spec { dim, metric: Metric::L2, dtype: DType::U8, kind: None }
    }

    fn two() -> Specs {
        Specs::named([("b".into(), spec(3)), ("a".into(), spec(2))]).unwrap()
    }

    #[test]
    fn what_is_decoded_was_encoded() {
        let long = "é".repeat(127);
        let many = Specs::named((0..16).map(|at| (format!("{long}{}", char::from(b'a' + at)), spec(7))));
        for specs in [spec(9).into(), two(), many.unwrap(), Specs::named([("é".into(), spec(1))]).unwrap()] {
            let bytes = specs.encode();
            assert_eq!(Specs::decode(&bytes), Some(specs.clone()));
            if specs.has_names() {
                (0..bytes.len()).for_each(|length| assert_eq!(Specs::decode(&bytes[..length]), None));
                assert_eq!(Spec::decode(&bytes), None, "an earlier version takes it for none of its own");
            }
        }
        assert_eq!(Specs::from(spec(9)).encode(), spec(9).encode());
        let names: Vec<_> = two().iter().map(|own| own.name.clone()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(Specs::named([(String::new(), spec(4))]), Ok(spec(4).into()));
    }

    #[test]
    fn names_have_limits() {
        let named = |names: &[&str]| Specs::named(names.iter().map(|name| (name.to_string(), spec(1))));
        let many: Vec<String> = (0..17).map(|at| at.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for names in [&[][..], &["", "a"], &["a", "a"], &["a/b"], &["a\n"], &[&"x".repeat(256)], &many] {
            assert!(named(names).is_err(), "{names:?}");
        }
        assert!(named(&[&"x".repeat(255), "é b"]).is_ok() && named(&many[1..]).is_ok());
        let error = Specs::named([("a".into(), spec(0))]).unwrap_err();
        assert!(error.message.contains("vector \"a\": vectors of 0 dimensions"), "{error}");
        let error = two().find(Some("c")).unwrap_err();
        assert!(error.message.contains("unknown vector name \"c\"; there are \"a\", \"b\""), "{error}");
        assert!(two().find(None).unwrap_err().message.contains("have names: \"a\", \"b\""));
        assert!(Specs::from(spec(1)).find(Some("a")).unwrap_err().message.contains("unknown vector name"));
    }

    #[test]
    fn a_record_has_the_vectors_that_are_there() {
        let (specs, a, b) = (two(), &[1, 2][..], &[3, 4, 5][..]);
        for vectors in [[Some(a), Some(b)], [None, Some(b)], [Some(a), None], [None, None]] {
            let record = specs.record(&vectors);
            assert_eq!(specs.vectors_in(&record).as_deref(), Some(&vectors[..]));
            (0..record.len()).for_each(|length| assert_eq!(specs.vectors_in(&record[..length]), None));
            assert!(specs.vectors_in(&[&record[..], &[0]].concat()).is_none());
        }
        assert!(specs.vectors_in(&[4, 0]).is_none(), "a bit of no name");
        let one = Specs::from(spec(2));
        assert!(matches!(one.record(&[Some(a)]), Cow::Borrowed(own) if own == a));
        assert_eq!(one.vectors_in(b), None);
    }
}

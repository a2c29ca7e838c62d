//! A filter compiled: filters that are equal in another form become one predicate, with one key.
//!
//! A predicate is in negation normal form: `and`, `or`, `at least n of` and conditions, of which some are negated.
//! Lists are flat, sorted and without repeats; conditions on the same field that can be one are one. Forms that only
//! a search for proofs would find equal stay different, and have the same answers.

mod compile;
mod matches;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3Default;

use crate::id::IdValue;
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;

/// A compiled filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicate {
    node: Node,
    key: u64,
}

/// A part of a predicate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    All,
    Nothing,
    Leaf(Leaf),
    /// A condition that does not hold.
    Not(Leaf),
    /// At least two parts, sorted.
    And(Vec<Node>),
    /// At least two parts, sorted.
    Or(Vec<Node>),
    /// So many of these parts, which may repeat; more than one and not all.
    AtLeast(usize, Vec<Node>),
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Leaf {
    /// A value is one of these, of which there is at least one.
    Any(Path, BTreeSet<Scalar>),
    /// A value is neither null nor one of these.
    Except(Path, BTreeSet<Scalar>),
    /// A string has all these words: at least two.
    Words(Path, BTreeSet<String>),
    /// A string has one of these words: at least one.
    AnyWord(Path, BTreeSet<String>),
    /// A string has these words next to each other: at least two.
    Phrase(Path, Vec<String>),
    Prefix(Path, String),
    Substring(Path, String),
    Numbers(Path, Span<Number>),
    /// A string is a date of these microseconds, both included.
    Dates(Path, i64, i64),
    /// So many values, both included.
    Count(Path, u64, u64),
    Exists(Path),
    IsEmpty(Path),
    IsNull(Path),
    HasId(BTreeSet<IdValue>),
    HasVector(String),
    /// An object that this path reaches holds to a predicate. The path ends in `[]`.
    Nested(Path, Box<Node>),
}

/// Values between two limits, each with whether it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span<T> {
    pub(crate) low: Option<(T, bool)>,
    pub(crate) high: Option<(T, bool)>,
}

impl<T: Ord + Copy> Span<T> {
    /// What is in both.
    pub(crate) fn intersection(&self, other: &Span<T>) -> Span<T> {
        // Of equal limits the one that leaves its value out is stricter.
        let low = self.low.into_iter().chain(other.low).max_by_key(|(low, is_in)| (*low, !is_in));
        let high = self.high.into_iter().chain(other.high).min_by_key(|(high, is_in)| (*high, *is_in));
        Span { low, high }
    }

    pub(crate) fn has(&self, value: &T) -> bool {
        self.low.as_ref().is_none_or(|(low, is_in)| value > low || *is_in && value == low)
            && self.high.as_ref().is_none_or(|(high, is_in)| value < high || *is_in && value == high)
    }
}

impl Predicate {
    fn new(node: Node) -> Predicate {
        let mut hash = StableHash(Xxh3Default::new());
        node.hash(&mut hash);
        Predicate { key: hash.finish(), node }
    }

    /// A key of the predicate: equal predicates have equal keys, in every process of one version of the program. Others
    /// may have the same key by chance, so a cache compares the predicates too.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Whether it matches every point.
    pub fn is_all(&self) -> bool {
        self.node == Node::All
    }

    /// Whether it matches no point, as is known without any.
    pub fn is_nothing(&self) -> bool {
        self.node == Node::Nothing
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Memory, bytes, about.
    pub fn bytes(&self) -> usize {
        size_of::<Predicate>() + self.node.bytes()
    }
}

impl Node {
    fn bytes(&self) -> usize {
        size_of::<Node>()
            + match self {
                Node::All | Node::Nothing => 0,
                Node::Leaf(leaf) | Node::Not(leaf) => leaf.bytes(),
                Node::And(parts) | Node::Or(parts) | Node::AtLeast(_, parts) => {
                    parts.iter().map(Node::bytes).sum()
                }
            }
    }
}

impl Leaf {
    fn bytes(&self) -> usize {
        // A path has a few steps, each with a short key.
        let path = 64;
        let text = |scalar: &Scalar| match scalar {
            Scalar::Text(text) => text.len(),
            _ => 0,
        };
        path + match self {
            Leaf::Any(_, set) | Leaf::Except(_, set) => {
                set.iter().map(|s| size_of::<Scalar>() + text(s)).sum()
            }
            Leaf::Words(_, words) | Leaf::AnyWord(_, words) => words.iter().map(|w| 24 + w.len()).sum(),
            Leaf::Phrase(_, words) => words.iter().map(|w| 24 + w.len()).sum(),
            Leaf::Prefix(_, text) | Leaf::Substring(_, text) | Leaf::HasVector(text) => text.len(),
            Leaf::HasId(ids) => ids.len() * size_of::<IdValue>(),
            Leaf::Nested(_, node) => node.bytes(),
            _ => 0,
        }
    }
}

/// A hasher that gives the same sums in every process.
struct StableHash(Xxh3Default);

impl Hasher for StableHash {
    fn finish(&self) -> u64 {
        self.0.digest()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_i64(number as i64);
    }
}

//! Compiles a filter.

use std::collections::BTreeSet;

use super::{Leaf, Node, Predicate, Span};
use crate::date::Date;
use crate::filter::{Condition, Filter, Interval, Match};
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;
use crate::words::words;

impl Filter {
    /// Compiles the filter.
    pub fn compile(&self) -> Predicate {
        Predicate::new(node_of(self))
    }
}

fn node_of(filter: &Filter) -> Node {
    let compiled = |conditions: &[Condition]| conditions.iter().map(of_condition).collect::<Vec<_>>();
    let mut parts = compiled(&filter.must);
    if !filter.should.is_empty() {
        parts.push(Node::or(compiled(&filter.should)));
    }
    parts.extend(filter.must_not.iter().map(|condition| of_condition(condition).negated()));
    if let Some(least) = &filter.min_should {
        parts.push(Node::at_least(least.min_count, compiled(&least.conditions)));
    }
    Node::and(parts)
}

fn of_condition(condition: &Condition) -> Node {
    match condition {
        Condition::Match(path, wanted) => of_match(path, wanted),
        Condition::Range(path, range) => numbers(path, range),
        Condition::DateRange(path, range) => dates(path, range),
        Condition::ValuesCount(path, range) => count(path, range),
        Condition::Exists(path) => Node::Leaf(Leaf::Exists(path.clone())),
        Condition::IsEmpty(path) => Node::Leaf(Leaf::IsEmpty(path.clone())),
        Condition::IsNull(path) => Node::Leaf(Leaf::IsNull(path.clone())),
        Condition::HasId(ids) if ids.is_empty() => Node::Nothing,
        Condition::HasId(ids) => Node::Leaf(Leaf::HasId(ids.iter().cloned().collect())),
        Condition::HasVector(name) => Node::Leaf(Leaf::HasVector(name.clone())),
        Condition::Nested(path, filter) => nested(&path.each(), node_of(filter)),
        Condition::Filter(filter) => node_of(filter),
    }
}

fn of_match(path: &Path, wanted: &Match) -> Node {
    let path = path.clone();
    let leaf = match wanted {
        Match::Value(scalar) => Leaf::Any(path, [scalar.clone()].into()),
        Match::Any(scalars) if scalars.is_empty() => return Node::Nothing,
        Match::Any(scalars) => Leaf::Any(path, scalars.iter().cloned().collect()),
        Match::Except(scalars) => Leaf::Except(path, scalars.iter().cloned().collect()),
        Match::Text(text) => {
            let words: BTreeSet<String> = words(text).collect();
            match words.len() {
                0 => return Node::Nothing,
                1 => Leaf::AnyWord(path, words),
                _ => Leaf::Words(path, words),
            }
        }
        Match::TextAny(text) => match words(text).next() {
            None => return Node::Nothing,
            Some(_) => Leaf::AnyWord(path, words(text).collect()),
        },
        Match::Phrase(text) => {
            let words: Vec<String> = words(text).collect();
            match words.len() {
                0 => return Node::Nothing,
                1 => Leaf::AnyWord(path, words.into_iter().collect()),
                _ => Leaf::Phrase(path, words),
            }
        }
        // Every string begins with nothing, and has nothing within.
        Match::Prefix(text) if text.is_empty() => Leaf::Substring(path, String::new()),
        Match::Prefix(text) => Leaf::Prefix(path, text.clone()),
        Match::Substring(text) => Leaf::Substring(path, text.clone()),
    };
    Node::Leaf(leaf)
}

/// The stricter of two limits, with whether it is in; `later` tells which of two is stricter.
fn limit<T: Clone>(open: &Option<T>, closed: &Option<T>, later: fn(&T, &T) -> bool) -> Option<(T, bool)> {
    match (open, closed) {
        (Some(open), Some(closed)) if later(closed, open) => Some((closed.clone(), true)),
        (Some(open), _) => Some((open.clone(), false)),
        (None, closed) => closed.clone().map(|closed| (closed, true)),
    }
}

fn numbers(path: &Path, range: &Interval<Number>) -> Node {
    let low = limit(&range.gt, &range.gte, |one, two| one > two);
    let high = limit(&range.lt, &range.lte, |one, two| one < two);
    if let (Some((low, is_low_in)), Some((high, is_high_in))) = (low, high) {
        let are_in = is_low_in && is_high_in;
        if low > high || low == high && !are_in {
            return Node::Nothing;
        }
        if low == high {
            return Node::Leaf(Leaf::Any(path.clone(), [Scalar::Number(low)].into()));
        }
    }
    Node::Leaf(Leaf::Numbers(path.clone(), Span { low, high }))
}

fn dates(path: &Path, range: &Interval<Date>) -> Node {
    let micros = |date: &Option<Date>| date.as_ref().map(|date| date.micros);
    let low = limit(&micros(&range.gt), &micros(&range.gte), |one, two| one > two);
    let high = limit(&micros(&range.lt), &micros(&range.lte), |one, two| one < two);
    let low = low.map_or(Some(i64::MIN), |(low, is_in)| if is_in { Some(low) } else { low.checked_add(1) });
    let high =
        high.map_or(Some(i64::MAX), |(high, is_in)| if is_in { Some(high) } else { high.checked_sub(1) });
    match (low, high) {
        (Some(low), Some(high)) if low <= high => Node::Leaf(Leaf::Dates(path.clone(), low, high)),
        _ => Node::Nothing,
    }
}

fn count(path: &Path, range: &Interval<u64>) -> Node {
    let low = limit(&range.gt, &range.gte, |one, two| one > two);
    let high = limit(&range.lt, &range.lte, |one, two| one < two);
    let low = low.map_or(Some(0), |(low, is_in)| if is_in { Some(low) } else { low.checked_add(1) });
    let high =
        high.map_or(Some(u64::MAX), |(high, is_in)| if is_in { Some(high) } else { high.checked_sub(1) });
    match (low, high) {
        (Some(0), Some(u64::MAX)) => Node::All,
        (Some(low), Some(high)) if low <= high => Node::Leaf(Leaf::Count(path.clone(), low, high)),
        _ => Node::Nothing,
    }
}

/// The objects of an array are looked at one by one. Where one condition alone is asked of them, and a single value
/// fulfils it, it is asked of all values at once.
fn nested(path: &Path, inner: Node) -> Node {
    match inner {
        Node::Nothing => Node::Nothing,
        Node::Leaf(leaf) => match leaf.within(path) {
            Ok(leaf) => Node::Leaf(leaf),
            Err(leaf) => Node::Leaf(Leaf::Nested(path.clone(), Box::new(Node::Leaf(leaf)))),
        },
        Node::Or(parts) => Node::or(parts.into_iter().map(|part| nested(path, part)).collect()),
        other => Node::Leaf(Leaf::Nested(path.clone(), Box::new(other))),
    }
}

impl Leaf {
    /// The condition on what this path reaches, for those that one value fulfils; others come back.
    pub(crate) fn within(self, path: &Path) -> Result<Leaf, Leaf> {
        Ok(match self {
            Leaf::Any(inner, set) => Leaf::Any(path.joined(&inner), set),
            Leaf::Except(inner, set) => Leaf::Except(path.joined(&inner), set),
            Leaf::Words(inner, words) => Leaf::Words(path.joined(&inner), words),
            Leaf::AnyWord(inner, words) => Leaf::AnyWord(path.joined(&inner), words),
            Leaf::Phrase(inner, words) => Leaf::Phrase(path.joined(&inner), words),
            Leaf::Prefix(inner, text) => Leaf::Prefix(path.joined(&inner), text),
            Leaf::Substring(inner, text) => Leaf::Substring(path.joined(&inner), text),
            Leaf::Numbers(inner, span) => Leaf::Numbers(path.joined(&inner), span),
            Leaf::Dates(inner, low, high) => Leaf::Dates(path.joined(&inner), low, high),
            Leaf::Exists(inner) => Leaf::Exists(path.joined(&inner)),
            Leaf::IsNull(inner) => Leaf::IsNull(path.joined(&inner)),
            Leaf::Nested(inner, node) => Leaf::Nested(path.joined(&inner), node),
            other @ (Leaf::Count(..) | Leaf::IsEmpty(_) | Leaf::HasId(_) | Leaf::HasVector(_)) => {
                return Err(other);
            }
        })
    }
}

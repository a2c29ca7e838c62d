//! Rules that bring equal predicates into one form.

use std::collections::{BTreeMap, BTreeSet};

use super::{Leaf, Node};

impl Node {
    /// All of these.
    pub(crate) fn and(parts: Vec<Node>) -> Node {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Node::All => {}
                Node::Nothing => return Node::Nothing,
                Node::And(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        // None of some conditions that can be one is not this one.
        let flat = merged(flat, Kind::Negated);
        let Some(flat) = intersected(flat, Kind::Plain) else { return Node::Nothing };
        single(flat, Node::All, Node::And)
    }

    /// One of these.
    pub(crate) fn or(parts: Vec<Node>) -> Node {
        let mut flat = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Node::Nothing => {}
                Node::All => return Node::All,
                Node::Or(inner) => flat.extend(inner),
                other => flat.push(other),
            }
        }
        let flat = merged(flat, Kind::Plain);
        let Some(flat) = intersected(flat, Kind::Negated) else { return Node::All };
        single(flat, Node::Nothing, Node::Or)
    }

    /// At least `count` of these; equal ones count each.
    pub(crate) fn at_least(count: usize, parts: Vec<Node>) -> Node {
        let certain = parts.iter().filter(|part| **part == Node::All).count();
        let left = count.saturating_sub(certain);
        let mut parts: Vec<Node> =
            parts.into_iter().filter(|part| !matches!(part, Node::All | Node::Nothing)).collect();
        match left {
            0 => Node::All,
            more if more > parts.len() => Node::Nothing,
            1 => Node::or(parts),
            all if all == parts.len() => Node::and(parts),
            some => {
                parts.sort_unstable();
                Node::AtLeast(some, parts)
            }
        }
    }

    /// The opposite.
    pub(crate) fn negated(self) -> Node {
        let opposites = |parts: Vec<Node>| parts.into_iter().map(Node::negated).collect::<Vec<_>>();
        match self {
            Node::All => Node::Nothing,
            Node::Nothing => Node::All,
            Node::Leaf(leaf) => Node::not(leaf),
            Node::Not(leaf) => Node::Leaf(leaf),
            Node::And(parts) => Node::or(opposites(parts)),
            Node::Or(parts) => Node::and(opposites(parts)),
            Node::AtLeast(count, parts) => Node::at_least(parts.len() + 1 - count, opposites(parts)),
        }
    }

    /// A condition that does not hold. The opposite of a number of values is another number of values.
    fn not(leaf: Leaf) -> Node {
        match leaf {
            Leaf::Count(path, 0, high) => Node::Leaf(Leaf::Count(path, high.saturating_add(1), u64::MAX)),
            Leaf::Count(path, low, u64::MAX) => Node::Leaf(Leaf::Count(path, 0, low - 1)),
            other => Node::Not(other),
        }
    }
}

/// Conditions that hold, or those that do not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Negated,
}

impl Kind {
    /// The condition of a part of this kind; other parts come back.
    fn of(self, node: Node) -> Result<Leaf, Node> {
        match (self, node) {
            (Kind::Plain, Node::Leaf(leaf)) | (Kind::Negated, Node::Not(leaf)) => Ok(leaf),
            (_, other) => Err(other),
        }
    }

    fn node(self, leaf: Leaf) -> Node {
        match self {
            Kind::Plain => Node::Leaf(leaf),
            Kind::Negated => Node::Not(leaf),
        }
    }
}

/// Makes one condition of those of a kind of which one or the other is enough.
fn merged(parts: Vec<Node>, kind: Kind) -> Vec<Node> {
    let (mut values, mut words, mut ids) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        match kind.of(part) {
            Ok(Leaf::Any(path, set)) => values.entry(path).or_insert_with(BTreeSet::new).extend(set),
            Ok(Leaf::AnyWord(path, set)) => words.entry(path).or_insert_with(BTreeSet::new).extend(set),
            Ok(Leaf::HasId(set)) => ids.extend(set),
            Ok(leaf) => rest.push(kind.node(leaf)),
            Err(node) => rest.push(node),
        }
    }
    rest.extend(values.into_iter().map(|(path, set)| kind.node(Leaf::Any(path, set))));
    rest.extend(words.into_iter().map(|(path, set)| kind.node(Leaf::AnyWord(path, set))));
    if !ids.is_empty() {
        rest.push(kind.node(Leaf::HasId(ids)));
    }
    rest.sort_unstable();
    rest.dedup();
    rest
}

/// Makes one condition of those of a kind which all hold, as ids that all lists have. `None` where no id is in all.
fn intersected(parts: Vec<Node>, kind: Kind) -> Option<Vec<Node>> {
    let mut ids: Option<BTreeSet<_>> = None;
    let mut rest = Vec::with_capacity(parts.len());
    for part in parts {
        match kind.of(part) {
            Ok(Leaf::HasId(set)) => {
                ids = Some(ids.map_or_else(|| set.clone(), |own| own.intersection(&set).cloned().collect()));
            }
            Ok(leaf) => rest.push(kind.node(leaf)),
            Err(node) => rest.push(node),
        }
    }
    if let Some(ids) = ids {
        if ids.is_empty() {
            return None;
        }
        rest.push(kind.node(Leaf::HasId(ids)));
        rest.sort_unstable();
    }
    Some(rest)
}

/// The only part, or `none` where there is none, or `several`.
fn single(mut parts: Vec<Node>, none: Node, several: fn(Vec<Node>) -> Node) -> Node {
    if parts.len() > 1 { several(parts) } else { parts.pop().unwrap_or(none) }
}

//! Which conditions of a predicate no index of a schema answers.

use std::collections::{BTreeMap, BTreeSet};

use super::evaluate::Unindexed;
use crate::path::Path;
use crate::predicate::{Leaf, Node, Predicate};
use crate::scalar::Scalar;
use crate::schema::{IndexKind, Schema};

impl Predicate {
    /// Conditions for which payloads are read of rows whose fields have these indexes. An index of a segment may know
    /// more, as that a field never has a value of this type.
    pub fn unindexed(&self, schema: &Schema) -> BTreeSet<Unindexed> {
        let mut found = Missing { fields: schema.fields().collect(), unindexed: BTreeSet::new() };
        found.node(self.node());
        found.unindexed
    }
}

struct Missing<'a> {
    fields: BTreeMap<&'a Path, &'a BTreeSet<IndexKind>>,
    unindexed: BTreeSet<Unindexed>,
}

impl Missing<'_> {
    fn node(&mut self, node: &Node) {
        match node {
            Node::All | Node::Nothing => {}
            Node::Leaf(Leaf::Nested(path, inner)) | Node::Not(Leaf::Nested(path, inner)) => {
                if !self.element(path, inner) {
                    self.unindexed.insert(Unindexed { field: path.clone(), kind: None });
                }
            }
            Node::Leaf(leaf) | Node::Not(leaf) => self.leaf(leaf),
            Node::And(parts) | Node::Or(parts) | Node::AtLeast(_, parts) => {
                parts.iter().for_each(|part| self.node(part));
            }
        }
    }

    fn leaf(&mut self, leaf: &Leaf) {
        let Some((path, kind)) = leaf.field() else { return };
        let is_answered = self.fields.get(path).is_some_and(|kinds| leaf.is_answered_by(kinds));
        if !is_answered {
            self.unindexed.insert(Unindexed { field: path.clone(), kind: Some(kind) });
        }
    }

    /// Whether an index may say which elements of an array hold to a predicate.
    fn element(&mut self, array: &Path, node: &Node) -> bool {
        match node {
            Node::Leaf(leaf) => match leaf.clone().within(array) {
                Ok(Leaf::Nested(path, inner)) => {
                    self.node(&Node::Leaf(Leaf::Nested(path, inner)));
                    true
                }
                Ok(leaf) => {
                    self.leaf(&leaf);
                    true
                }
                Err(_) => false,
            },
            // All parts are looked at, so that every condition without an index is named.
            Node::And(parts) => parts.iter().filter(|part| self.element(array, part)).count() > 0,
            Node::Or(parts) => parts.iter().all(|part| self.element(array, part)),
            Node::All | Node::Nothing | Node::Not(_) | Node::AtLeast(..) => false,
        }
    }
}

impl Leaf {
    /// Whether a field with these indexes answers the condition.
    fn is_answered_by(&self, kinds: &BTreeSet<IndexKind>) -> bool {
        let has = |wanted: &[IndexKind]| wanted.iter().any(|kind| kinds.contains(kind));
        let (strings, numbers) =
            ([IndexKind::Keyword, IndexKind::Uuid], [IndexKind::Integer, IndexKind::Float]);
        match self {
            Leaf::Any(_, set) | Leaf::Except(_, set) => set.iter().all(|value| match value {
                Scalar::Bool(_) => has(&[IndexKind::Bool]),
                Scalar::Number(_) => has(&numbers),
                Scalar::Text(_) => has(&strings),
            }),
            Leaf::Words(..) | Leaf::AnyWord(..) | Leaf::Phrase(..) => has(&[IndexKind::Text]),
            Leaf::Prefix(..) => has(&strings),
            Leaf::Substring(_, part) => part.is_empty() || has(&strings),
            Leaf::Numbers(..) => has(&numbers),
            Leaf::Dates(..) => has(&[IndexKind::Datetime]),
            // Every indexed field has these facts.
            Leaf::Count(..) | Leaf::Exists(_) | Leaf::IsEmpty(_) | Leaf::IsNull(_) => true,
            Leaf::HasId(_) | Leaf::HasVector(_) | Leaf::Nested(..) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    fn unindexed(text: &str, schema: &str) -> Vec<String> {
        let schema: Schema = serde_json::from_str(schema).unwrap();
        let predicate = Filter::from_where(text).unwrap().compile();
        predicate.unindexed(&schema).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_condition_needs_an_index_of_its_own() {
        let schema =
            r#"{"a": ["keyword"], "n": ["integer"], "t": ["text"], "d": ["datetime"], "u": ["uuid"]}"#;
        for text in ["a = 'x'", "n > 5", "n = 5", "t match 'x y'", "u = 'x'", "a is null", "a like 'x%'"] {
            assert_eq!(unindexed(text, schema), [""; 0], "{text}");
        }
        let needs = |text: &str| unindexed(text, schema).join(", ");
        assert_eq!(needs("a = 5"), "a (create an index of kind integer)");
        assert_eq!(
            needs("n = 'x' and b > 5"),
            "b (create an index of kind float), n (create an index of kind keyword)"
        );
        assert_eq!(
            needs("not (a match 'x') or c = 'y'"),
            "a (create an index of kind text), c (create an index of kind keyword)"
        );
        assert_eq!(needs("c is null"), "c (create an index of kind keyword)");
    }

    #[test]
    fn conditions_on_elements_are_those_on_their_fields() {
        let nested = |inner: &str, schema: &str| {
            let json = format!(r#"{{"must": [{{"nested": {{"key": "lines", "filter": {inner}}}}}]}}"#);
            let predicate = Filter::from_json(json.as_bytes()).unwrap().compile();
            let schema: Schema = serde_json::from_str(schema).unwrap();
            predicate.unindexed(&schema).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let two =
            r#"{"must": [{"key": "price", "range": {"lt": 5}}, {"key": "sold", "match": {"value": true}}]}"#;
        let not = r#"{"must_not": [{"key": "price", "range": {"lt": 5}}, {"key": "sold", "match": {"value": true}}]}"#;
        assert_eq!(nested(two, r#"{"lines[].price": ["float"], "lines[].sold": ["bool"]}"#), "");
        assert_eq!(
            nested(two, r#"{"lines[].price": ["float"]}"#),
            "lines[].sold (create an index of kind bool)"
        );
        assert_eq!(nested(not, r#"{"lines[].price": ["float"]}"#), "lines[] (payloads are read)");
    }
}

//! Decides one payload.

use serde_json::{Map, Value};

use super::{Leaf, Node, Predicate};
use crate::date::micros_of;
use crate::filter::{count_of, is_filled};
use crate::number::Number;
use crate::scalar::Scalar;
use crate::value::Payload;
use crate::words::{has_phrase, words};
use crate::{Path, PointFacts};

impl Predicate {
    /// Whether a point matches.
    pub fn matches(&self, payload: &Payload, facts: &dyn PointFacts) -> bool {
        self.node.holds(payload.as_map(), facts)
    }
}

impl Node {
    pub(crate) fn holds(&self, fields: &Map<String, Value>, facts: &dyn PointFacts) -> bool {
        match self {
            Node::All => true,
            Node::Nothing => false,
            Node::Leaf(leaf) => leaf.holds(fields, facts),
            Node::Not(leaf) => !leaf.holds(fields, facts),
            Node::And(parts) => parts.iter().all(|part| part.holds(fields, facts)),
            Node::Or(parts) => parts.iter().any(|part| part.holds(fields, facts)),
            Node::AtLeast(count, parts) => {
                let held = parts.iter().filter(|part| part.holds(fields, facts));
                held.take(*count).count() == *count
            }
        }
    }
}

impl Leaf {
    fn holds(&self, fields: &Map<String, Value>, facts: &dyn PointFacts) -> bool {
        let has_text = |path: &Path, decide: &dyn Fn(&str) -> bool| {
            path.any(fields, &mut |value| value.as_str().is_some_and(decide))
        };
        match self {
            Leaf::Any(path, set) => {
                path.any(fields, &mut |value| Scalar::of_json(value).is_some_and(|own| set.contains(&own)))
            }
            Leaf::Except(path, set) => path.any(fields, &mut |value| {
                !value.is_null() && !Scalar::of_json(value).is_some_and(|own| set.contains(&own))
            }),
            Leaf::Words(path, wanted) => has_text(path, &|text| {
                let found: std::collections::BTreeSet<String> =
                    words(text).filter(|word| wanted.contains(word)).collect();
                found.len() == wanted.len()
            }),
            Leaf::AnyWord(path, wanted) => {
                has_text(path, &|text| words(text).any(|word| wanted.contains(&word)))
            }
            Leaf::Phrase(path, wanted) => has_text(path, &|text| has_phrase(text, wanted)),
            Leaf::Prefix(path, prefix) => has_text(path, &|text| text.starts_with(prefix)),
            Leaf::Substring(path, part) => has_text(path, &|text| text.contains(part)),
            Leaf::Numbers(path, span) => path.any(fields, &mut |value| {
                value.as_number().and_then(Number::of_json).is_some_and(|number| span.has(&number))
            }),
            Leaf::Dates(path, low, high) => {
                has_text(path, &|text| micros_of(text).is_some_and(|micros| (*low..=*high).contains(&micros)))
            }
            Leaf::Count(path, low, high) => (*low..=*high).contains(&count_of(path, fields)),
            Leaf::Exists(path) => path.reaches(fields, &mut |_| true),
            Leaf::IsEmpty(path) => !path.reaches(fields, &mut is_filled),
            Leaf::IsNull(path) => path.any(fields, &mut |value| value.is_null()),
            Leaf::HasId(ids) => ids.iter().any(|id| facts.has_id(id)),
            Leaf::HasVector(name) => facts.has_vector(name),
            Leaf::Nested(path, node) => path.reaches(fields, &mut |element| {
                element.as_object().is_some_and(|element| node.holds(element, facts))
            }),
        }
    }
}

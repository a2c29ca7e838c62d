use serde_json::{Value, json};

use crate::filter::Filter;
use crate::filter::random::Random;

fn key(value: &Value) -> u64 {
    Filter::from_value(value).unwrap().compile().key()
}

#[test]
fn equal_filters_have_equal_keys() {
    let field = |value: Value| json!({"key": "a", "match": {"value": value}});
    let any = |values: Value| json!({"key": "a", "match": {"any": values}});
    let range = |value: Value| json!({"key": "a", "range": value});
    let nested = |filter: Value| json!({"nested": {"key": "l", "filter": filter}});
    for equal in [
        vec![
            json!({"must": [field(json!(1))]}),
            json!({"should": [field(json!(1.0))]}),
            json!({"must": any(json!([1, 1]))}),
            json!({"must_not": {"must_not": field(json!(1))}}),
            json!({"must": range(json!({"gte": 1, "lte": 1}))}),
        ],
        vec![
            json!({"must": any(json!([1, "x"]))}),
            json!({"should": [field(json!("x")), field(json!(1))]}),
            json!({"min_should": {"conditions": [field(json!(1)), field(json!("x"))], "min_count": 1}}),
        ],
        vec![
            json!({"must_not": [field(json!(1)), field(json!(2))]}),
            json!({"must_not": any(json!([2, 1]))}),
            json!({"must": [{"must_not": field(json!(1))}, {"must_not": field(json!(2))}]}),
        ],
        vec![
            json!({}),
            json!({"must": [{}]}),
            json!({"min_should": {"conditions": [field(json!(1))], "min_count": 0}}),
            json!({"must": {"key": "a", "values_count": {"gte": 0}}}),
        ],
        vec![
            json!({"must": any(json!([]))}),
            json!({"must_not": {}}),
            json!({"must": {"has_id": []}}),
            json!({"must": [{"has_id": [1]}, {"has_id": [2]}]}),
            json!({"must": range(json!({"gt": 3, "lt": 3}))}),
            json!({"must": {"key": "a", "match": {"text": "?"}}}),
        ],
        vec![
            json!({"must": {"key": "a", "values_count": {"gt": 1}}}),
            json!({"must_not": {"key": "a", "values_count": {"lt": 2}}}),
        ],
        vec![
            json!({"must": {"key": "a", "match": {"text": "Fox!"}}}),
            json!({"must": {"key": "a", "match": {"phrase": "fox"}}}),
            json!({"must": {"key": "a", "match": {"text_any": "fox fox"}}}),
        ],
        vec![
            json!({"must": range(json!({"gt": "2024-05-01T12:00:00+02:00"}))}),
            json!({"must": range(json!({"gt": "2024-05-01T10:00:00Z", "gte": "2020-01-01"}))}),
        ],
        vec![
            json!({"must": nested(json!({"must": field(json!(1))}))}),
            json!({"must": {"key": "l[].a", "match": {"value": 1}}}),
        ],
        vec![
            json!({"must": nested(json!({"should": [field(json!(1)), {"must_not": field(json!(2))}]}))}),
            json!({"should": [nested(json!({"must": field(json!(1))})), nested(json!({"must_not": field(json!(2))}))]}),
        ],
    ] {
        for other in &equal {
            assert_eq!(key(other), key(&equal[0]), "{other} and {}", equal[0]);
        }
    }
    let different = [
        json!({"must": field(json!(1))}),
        json!({"must": field(json!("1"))}),
        json!({"must_not": field(json!(1))}),
        json!({"must": {"key": "b", "match": {"value": 1}}}),
        json!({}),
        json!({"must": {"key": "a", "match": {"except": [1]}}}),
        json!({"must": range(json!({"gt": 1}))}),
        json!({"must": range(json!({"gte": 1}))}),
        json!({"must": any(json!([]))}),
    ];
    let keys: std::collections::BTreeSet<u64> = different.iter().map(key).collect();
    assert_eq!(keys.len(), different.len());
}

#[test]
fn rewritten_filters_have_equal_keys() {
    let mut random = Random(3);
    for _ in 0..5000 {
        let filter = random.filter();
        let once = random.rewritten(&filter);
        let twice = random.rewritten(&once);
        assert_eq!(filter.compile(), once.compile(), "{} and {}", filter.to_value(), once.to_value());
        assert_eq!(filter.compile().key(), twice.compile().key());
    }
}

#[test]
fn the_key_is_the_same_in_every_process() {
    let filter = json!({"must": {"key": "a", "match": {"value": "x"}}, "must_not": {"has_id": [7]}});
    assert_eq!(format!("{:016x}", key(&filter)), "ddabc8b2f4832c69");
}

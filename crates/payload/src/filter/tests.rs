use std::fmt::Write;

use serde_json::{Value, json};

use super::random::Random;
use super::*;
use crate::value::Payload;
use crate::{IdValue, PointFacts};

struct Nobody;

impl PointFacts for Nobody {
    fn has_id(&self, id: &IdValue) -> bool {
        *id == IdValue::Number(7)
    }

    fn has_vector(&self, name: &str) -> bool {
        name == "v"
    }
}

fn filter(value: Value) -> Filter {
    Filter::from_value(&value).unwrap()
}

fn matches(condition: Value, payload: &Value) -> bool {
    let filter = filter(json!({"must": condition}));
    let payload = Payload::from_value(payload.clone()).unwrap();
    let found = filter.matches(&payload, &Nobody);
    assert_eq!(filter.compile().matches(&payload, &Nobody), found);
    found
}

#[test]
fn conditions_hold_as_they_say() {
    let payload = json!({
        "n": 5, "f": 5.0, "t": "Red fox jumps", "l": [1, "x", null, [2]], "e": [], "z": null, "b": true,
        "d": "2024-05-01T12:00:00+02:00", "o": [{"s": 3, "ok": true}, {"s": 9, "ok": false}, 4],
    });
    let field = |key: &str, name: &str, value: Value| json!({"key": key, name: value});
    let wanted = |key: &str, value: Value| field(key, "match", value);
    for (condition, holds) in [
        (wanted("n", json!({"value": 5.0})), true),
        (wanted("n", json!({"value": "5"})), false),
        (wanted("l", json!({"value": "x"})), true),
        (wanted("l", json!({"value": 2})), false),
        (wanted("l[3]", json!({"value": 2})), true),
        (wanted("l", json!({"any": [7, 1]})), true),
        (wanted("l", json!({"any": []})), false),
        (wanted("n", json!({"except": [5]})), false),
        (wanted("n", json!({"except": ["5"]})), true),
        (wanted("l", json!({"except": [1, "x"]})), true),
        (wanted("z", json!({"except": [1]})), false),
        (wanted("no", json!({"except": [1]})), false),
        (wanted("t", json!({"text": "JUMPS red"})), true),
        (wanted("t", json!({"text": "red foxes"})), false),
        (wanted("t", json!({"text_any": "cat fox"})), true),
        (wanted("t", json!({"phrase": "fox jumps"})), true),
        (wanted("t", json!({"phrase": "red jumps"})), false),
        (wanted("t", json!({"text": "?!"})), false),
        (wanted("t", json!({"prefix": "Red f"})), true),
        (wanted("t", json!({"prefix": "red"})), false),
        (wanted("t", json!({"substring": "fox j"})), true),
        (field("n", "range", json!({"gt": 4, "lte": 5})), true),
        (field("n", "range", json!({"gt": 5})), false),
        (field("t", "range", json!({"gt": 0})), false),
        (field("d", "range", json!({"gte": "2024-05-01T10:00:00Z", "lt": "2024-05-02"})), true),
        (field("d", "range", json!({"gt": "2024-05-01T10:00:00Z"})), false),
        (field("l", "values_count", json!({"gte": 4, "lt": 5})), true),
        (field("z", "values_count", json!({"gt": 0})), false),
        (field("no", "values_count", json!({"lte": 0})), true),
        (json!({"exists": {"key": "z"}}), true),
        (json!({"exists": {"key": "no"}}), false),
        (json!({"is_empty": {"key": "no"}}), true),
        (json!({"is_empty": {"key": "z"}}), true),
        (json!({"is_empty": {"key": "e"}}), true),
        (json!({"is_empty": {"key": "l"}}), false),
        (json!({"is_null": {"key": "l"}}), true),
        (json!({"is_null": {"key": "no"}}), false),
        (field("z", "is_null", json!(true)), true),
        (field("z", "is_empty", json!(false)), false),
        (json!({"has_id": [1, 7]}), true),
        (json!({"has_id": ["7"]}), false),
        (json!({"has_vector": "v"}), true),
        (
            json!({"nested": {"key": "o", "filter": {"must": [field("s", "range", json!({"gt": 5})),
            wanted("ok", json!({"value": true}))]}}}),
            false,
        ),
        (
            json!({"nested": {"key": "o[]", "filter": {"must": field("s", "range", json!({"gt": 5})),
            "must_not": wanted("ok", json!({"value": true}))}}}),
            true,
        ),
        (
            json!({"min_should": {"conditions": [wanted("n", json!({"value": 5})), wanted("n", json!({"value": 6})),
            wanted("b", json!({"value": true}))], "min_count": 2}}),
            true,
        ),
        (
            json!({"should": [wanted("n", json!({"value": 6})), {"must_not": wanted("n", json!({"value": 6}))}]}),
            true,
        ),
        (json!({}), true),
    ] {
        assert_eq!(matches(condition.clone(), &payload), holds, "{condition}");
    }
}

#[test]
fn wrong_filters_are_refused_with_their_place() {
    let field = |name: &str, value: Value| json!({"must": [{"key": "a", name: value}]});
    for (value, why) in [
        (json!([]), "the filter is an array; give an object"),
        (json!({"musst": []}), "unknown member \"musst\"; possible are must, should"),
        (json!({"must": 5}), "/must is a number; give a list"),
        (json!({"must": [5]}), "/must/0 is a number; give an object"),
        (json!({"must": [{"keyy": "a"}]}), "/must/0 has an unknown member \"keyy\""),
        (json!({"must": [{"key": "a"}]}), "/must/0 needs exactly one of match, range"),
        (json!({"must": [{"key": "a", "match": {"value": 1}, "range": {}}]}), "exactly one of"),
        (json!({"must": [{"key": "a", "matches": {}}]}), "unknown member \"matches\""),
        (json!({"must": [{"key": 5, "match": {"value": 1}}]}), "lacks \"key\""),
        (
            json!({"must": [{"key": "a..b", "match": {"value": 1}}]}),
            "wrong key: the path \"a..b\" is wrong at column 3",
        ),
        (field("match", json!({"value": null})), "/must/0/match/value is null; use {\"is_null\""),
        (field("match", json!({"value": [1]})), "is not a string, number or boolean"),
        (field("match", json!({"any": 1})), "/must/0/match/any is no list"),
        (field("match", json!({"any": [1, {}]})), "/must/0/match/any, item 1, is not a string"),
        (field("match", json!({"value": 1, "any": [1]})), "needs exactly one of value, any"),
        (field("match", json!({"text": 5})), "/must/0/match/text is a number; give a string"),
        (field("range", json!({"gt": true})), "/must/0/range/gt is a boolean; give a number or a date"),
        (field("range", json!({"gt": 1, "from": 1})), "unknown member \"from\""),
        (field("range", json!({"gt": "yesterday"})), "/must/0/range/gt is \"yesterday\", which is no date"),
        (field("range", json!({"gt": "2024-01-01", "lt": 5})), "/must/0/range/lt is 5, which is no date"),
        (field("values_count", json!({"gt": -1})), "/must/0/values_count/gt is no number from 0 on"),
        (field("is_null", json!(1)), "is no boolean"),
        (
            field("geo_radius", json!({})),
            "/must/0 has \"geo_radius\", and conditions on places are not possible",
        ),
        (json!({"must": {"geo_bounding_box": {}}}), "conditions on places"),
        (json!({"must_not": [{"has_id": 5}]}), "/must_not/0/has_id is no list"),
        (json!({"must_not": [{"has_id": [1, -5]}]}), "/must_not/0/has_id, item 1, is no id"),
        (json!({"must_not": [{"has_vector": 5}]}), "give the name of a vector"),
        (json!({"must": [{"nested": {"key": "a"}}]}), "/must/0/nested lacks \"filter\""),
        (
            json!({"must": [{"nested": {"key": "a", "filter": {"must": [{"has_id": [1]}]}}}]}),
            "put these beside nested",
        ),
        (json!({"min_should": {"conditions": []}}), "/min_should lacks \"min_count\""),
        (json!({"min_should": {"min_count": 1}}), "/min_should lacks \"conditions\""),
        (json!({"should": [{"must": [{"a/b~": 1}]}]}), "/should/0/must/0 has an unknown member \"a/b~\""),
    ] {
        let message = Filter::from_value(&value).expect_err(&value.to_string()).message;
        assert!(message.contains(why), "{value}: {message}");
    }
    for (json, why) in [
        (&b"{"[..], "not JSON"),
        (b"{\"must\":[{\"key\":\"a\",\"match\":{\"value\":1e400}}]}", "range"),
        (b"{\"must\":\"\xff\"}", "not UTF-8 at byte 9"),
        (b"{\"must\": NaN}", "not JSON"),
    ] {
        let message = Filter::from_json(json).unwrap_err().message;
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn members_that_are_null_are_not_given() {
    let given = json!({"must": [{"key": "a", "match": {"value": 1}, "range": null, "geo": null}]});
    assert!(Filter::from_value(&given).unwrap_err().message.contains("unknown member \"geo\""));
    let given = json!({"must": [{"key": "a", "match": {"value": 1}, "range": null}], "should": null,
        "min_should": null});
    assert_eq!(filter(given), filter(json!({"must": {"key": "a", "match": {"value": 1}}})));
}

#[test]
fn ten_thousand_conditions_and_a_hundred_levels_are_read() {
    let many: Vec<Value> = (0..10_000).map(|at| json!({"key": "a", "match": {"value": at}})).collect();
    let own = filter(json!({"should": many}));
    assert_eq!(own.should.len(), 10_000);
    let payload = Payload::from_value(json!({"a": 9_999})).unwrap();
    assert!(own.matches(&payload, &Nobody) && own.compile().matches(&payload, &Nobody));

    let too_many = vec![json!({"is_null": {"key": "a"}}); CONDITIONS_MAX + 1];
    assert!(
        Filter::from_value(&json!({ "must": too_many })).unwrap_err().message.contains("100000 conditions")
    );
    let values: Vec<Value> = (0..=VALUES_MAX).map(|at| at.into()).collect();
    let any = json!({"must": {"key": "a", "match": {"any": values}}});
    assert!(Filter::from_value(&any).unwrap_err().message.contains("1000000 values"));

    let nested = |depth: usize| {
        let mut json = String::new();
        for _ in 0..depth - 1 {
            write!(json, "{{\"must_not\":[{{\"nested\":{{\"key\":\"a\",\"filter\":").unwrap();
        }
        json + "{\"must\":[{\"is_null\":{\"key\":\"a\"}}]}" + &"}}]}".repeat(depth - 1)
    };
    for depth in [100, DEPTH_MAX - 1] {
        let own = Filter::from_json(nested(depth).as_bytes()).unwrap();
        assert_eq!(Filter::from_value(&own.to_value()).unwrap(), own);
        let payload = Payload::from_value(json!({"a": [{"a": [{"a": null}]}]})).unwrap();
        assert_eq!(own.matches(&payload, &Nobody), own.compile().matches(&payload, &Nobody));
    }
    for depth in [DEPTH_MAX + 1, 1000, 100_000] {
        let message = Filter::from_json(nested(depth).as_bytes()).unwrap_err().message;
        assert!(message.contains("deeper than"), "{message}");
    }
}

#[test]
fn every_filter_comes_back_from_its_json() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let own = random.filter();
        let json = own.to_value().to_string();
        assert_eq!(Filter::from_json(json.as_bytes()).unwrap(), own, "{json}");
    }
}

#[test]
fn bytes_that_were_changed_are_never_a_panic() {
    let mut random = Random(2);
    for _ in 0..2000 {
        let mut json = random.filter().to_value().to_string().into_bytes();
        for _ in 0..3 {
            let at = random.below(json.len());
            json[at] = b"{}[]\",:x0-\xff\x00"[random.below(12)];
        }
        _ = Filter::from_json(&json);
        json.truncate(random.below(json.len()));
        _ = Filter::from_json(&json);
        _ = crate::Path::parse(&String::from_utf8_lossy(&json));
        _ = Filter::from_where(&String::from_utf8_lossy(&json));
    }
}

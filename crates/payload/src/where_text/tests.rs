use serde_json::{Value, json};

use super::*;
use crate::filter::CONDITIONS_MAX;

fn read(text: &str) -> Value {
    Filter::from_where(text).unwrap_or_else(|e| panic!("{text}: {e}")).to_value()
}

fn refused(text: &str) -> String {
    Filter::from_where(text).expect_err(text).message
}

#[test]
fn each_form_is_a_condition() {
    let of = |condition: Value| json!({"must": [condition]});
    let field = |name: &str, value: Value| json!({"must": [{"key": "a", name: value}]});
    let not =
        |condition: Value| json!({"must": [{"key": "a", "match": {"except": []}}], "must_not": [condition]});
    for (text, value) in [
        ("a = 5", field("match", json!({"value": 5}))),
        ("a == 'it''s'", field("match", json!({"value": "it's"}))),
        ("a = \"x \"\"y\"\"\"", field("match", json!({"value": "x \"y\""}))),
        ("a = true", field("match", json!({"value": true}))),
        ("a = -0.5", field("match", json!({"value": -0.5}))),
        ("a = 18446744073709551615", field("match", json!({"value": u64::MAX}))),
        ("a != FALSE", field("match", json!({"except": [false]}))),
        ("a <> 1e3", field("match", json!({"except": [1000.0]}))),
        ("a IN (1, 'x', true)", field("match", json!({"any": [1, "x", true]}))),
        ("a not in (1)", field("match", json!({"except": [1]}))),
        ("a<5", field("range", json!({"lt": 5}))),
        ("a <= 5", field("range", json!({"lte": 5}))),
        ("a > +5", field("range", json!({"gt": 5}))),
        ("a >=date'2024-05-01'", field("range", json!({"gte": "2024-05-01"}))),
        ("a between 1 and 2.5", field("range", json!({"gte": 1, "lte": 2.5}))),
        ("a = date '2024-05-01'", field("range", json!({"gte": "2024-05-01", "lte": "2024-05-01"}))),
        ("a not between 1 and 2", not(json!({"key": "a", "range": {"gte": 1, "lte": 2}}))),
        (
            "a != date '2024-05-01'",
            not(json!({"key": "a", "range": {"gte": "2024-05-01", "lte": "2024-05-01"}})),
        ),
        ("a like 'x%'", field("match", json!({"prefix": "x"}))),
        ("a like '%x%'", field("match", json!({"substring": "x"}))),
        ("a like 'x'", field("match", json!({"value": "x"}))),
        (r"a like '50\% \_\\%'", field("match", json!({"prefix": "50% _\\"}))),
        ("a not like 'x%'", not(json!({"key": "a", "match": {"prefix": "x"}}))),
        ("a match 'two words'", field("match", json!({"text": "two words"}))),
        ("a match any 'two words'", field("match", json!({"text_any": "two words"}))),
        ("a phrase 'two words'", field("match", json!({"phrase": "two words"}))),
        ("a not match 'x'", not(json!({"key": "a", "match": {"text": "x"}}))),
        ("a is null", of(json!({"is_empty": {"key": "a"}}))),
        ("a is not null", json!({"must_not": [{"is_empty": {"key": "a"}}]})),
        ("is_empty(a)", of(json!({"is_empty": {"key": "a"}}))),
        ("is_null(a)", of(json!({"is_null": {"key": "a"}}))),
        ("Exists(a.b)", of(json!({"exists": {"key": "a.b"}}))),
        ("has_id(7, 'x')", of(json!({"has_id": [7, "x"]}))),
        ("has_vector('image')", of(json!({"has_vector": "image"}))),
        ("count(a) >= 2", field("values_count", json!({"gte": 2}))),
        ("count(a[].b) = 2", of(json!({"key": "a[].b", "values_count": {"gte": 2, "lte": 2}}))),
        ("count(a) != 2", json!({"must_not": [{"key": "a", "values_count": {"gte": 2, "lte": 2}}]})),
        (
            "nested(a, b = 1)",
            of(json!({"nested": {"key": "a", "filter": of(json!({"key": "b", "match": {"value": 1}}))}})),
        ),
        (
            "at_least(1, exists(a), exists(b))",
            json!({"min_should": {
            "conditions": [{"exists": {"key": "a"}}, {"exists": {"key": "b"}}], "min_count": 1}}),
        ),
    ] {
        assert_eq!(read(text), value, "{text}");
        assert_eq!(Filter::from_value(&value).unwrap(), Filter::from_where(text).unwrap(), "{text}");
    }
}

#[test]
fn fields_are_paths() {
    for (text, key) in [
        ("a[].b[0] = 1", "a[].b[0]"),
        ("`first name`.`a.b` = 1", "first name.\"a.b\""),
        ("`and`.x = 1", "and.x"),
        ("date = 1", "date"),
        ("größe-2.null_x = 1", "größe-2.null_x"),
        ("`tick``ed` = 1", "tick`ed"),
        ("`\"q\\` = 1", r#""\"q\\""#),
        ("count = 1", "count"),
    ] {
        assert_eq!(read(text)["must"][0]["key"], key, "{text}");
    }
}

#[test]
fn and_binds_more_than_or() {
    let one = |name: &str| json!({"key": name, "match": {"value": 1}});
    assert_eq!(
        read("a = 1 or b = 1 and not c = 1"),
        json!({"should": [one("a"), {"must": [one("b"), {"must_not": [one("c")]}]}]})
    );
    assert_eq!(
        read("(a = 1 or b = 1) and c = 1"),
        json!({"must": [{"should": [one("a"), one("b")]}, one("c")]})
    );
    assert_eq!(read("((a = 1))"), json!({"must": [one("a")]}));
}

#[test]
fn errors_name_the_column_and_what_was_expected() {
    for (text, column, why) in [
        ("", 1, "a field is expected, not the end"),
        ("a", 2, "is null or not is expected, not the end"),
        ("a = ", 5, "a value"),
        ("a = b", 5, "a value"),
        ("a = null", 5, "is null"),
        ("a < 'x'", 5, "date '2024-05-01'"),
        ("a < 'x' and b = 1", 5, "a number"),
        ("a = 'x", 5, "not closed"),
        ("a = 1e400", 5, "range of a float"),
        ("a = 1.", 5, "a number such as"),
        ("a = 5x", 5, "a number such as"),
        ("é = 1 and", 10, "a field"),
        ("a = 1 b = 2", 7, "and, or, or the end"),
        ("(a = 1", 7, "and, or or )"),
        ("a in 1", 6, "( is expected"),
        ("a in ()", 7, "a value"),
        ("a in (1 2)", 9, ", or )"),
        ("a in (date '2024-05-01')", 12, "dates are compared by"),
        ("a between 1 or 2", 13, "and is expected"),
        ("a between 1 and date '2024-05-01'", 17, "two numbers or two dates"),
        ("a like '%x'", 8, "% at the end"),
        ("a like 'x_'", 8, "\\_"),
        ("a like '\\x'", 8, "single backslash"),
        ("a like 5", 8, "a text in quotes"),
        ("a is 5", 6, "null or not null"),
        ("a not 5", 7, "in, between, like, match or phrase"),
        ("and = 5", 1, "in backticks"),
        ("a = date '2024-13-01'", 10, "a date such as"),
        ("sin(a) = 1", 1, "a function (exists"),
        ("a; drop", 2, "no meaning here"),
        ("a[x] = 1", 3, "a whole number"),
        ("a. = 1", 4, "a field"),
        ("count(a) = 1.5", 12, "a whole number"),
        ("has_id(-1)", 8, "an id"),
        ("nested(a, has_id(1))", 11, "beside nested"),
    ] {
        let message = refused(text);
        assert!(
            message.contains(&format!("at column {column}:")) && message.contains(why),
            "{text}: {message}"
        );
    }
}

#[test]
fn long_and_deep_texts_are_read_or_refused() {
    let many = (0..10_000).map(|at| format!("a = {at}")).collect::<Vec<_>>();
    assert_eq!(Filter::from_where(&many.join(" or ")).unwrap().should.len(), 10_000);
    let deep = |depth: usize| format!("{}a = 1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Filter::from_where(&deep(DEPTH_MAX)).is_ok());
    for depth in [DEPTH_MAX + 1, 1000, 1_000_000] {
        assert!(refused(&deep(depth)).contains("at most 42 levels"));
    }
    assert!(refused(&format!("{}a = 1", "not ".repeat(100_000))).contains("at most 42 levels"));
    assert!(refused(&"x".repeat(BYTES_MAX + 1)).contains("bytes"));
    let too_many = vec!["a=1"; CONDITIONS_MAX + 1].join(" and ");
    assert!(refused(&too_many).contains("at most 100000 conditions"));
    // What is as deep as possible can be written and read again.
    let inside = "at_least(1, a = 1 or b = 1 and ".repeat(DEPTH_MAX) + "c = 1" + &")".repeat(DEPTH_MAX);
    let filter = Filter::from_where(&inside).unwrap();
    assert_eq!(Filter::from_value(&filter.to_value()).unwrap(), filter);
}

use std::time::Instant;

use serde_json::json;

use super::*;
use crate::path::Path;

fn payload(value: Value) -> Payload {
    Payload::from_value(value).unwrap()
}

fn refused(json: &[u8]) -> String {
    Payload::parse(json).unwrap_err().message
}

#[test]
fn numbers_strings_and_equal_keys_are_kept() {
    let text = r#"{"f":0.1,"i":-9223372036854775808,"s":"a\u0000é","u":18446744073709551615}"#;
    assert_eq!(Payload::parse(text.as_bytes()).unwrap().to_string(), text);
    assert_eq!(Payload::parse(br#"{"a":1,"b":2,"a":3}"#).unwrap(), payload(json!({"a": 3, "b": 2})));
    assert_eq!(Payload::parse(b" {} ").unwrap(), Payload::new());
}

#[test]
fn what_is_no_payload_is_refused() {
    for (json, why) in [
        (&b"[1]"[..], "is an array"),
        (b"null", "is null"),
        (b"\"x\"", "is a string"),
        (b"{\"a\": NaN}", "not JSON"),
        (b"{\"a\": Infinity}", "not JSON"),
        (b"{\"a\": 1e400}", "number out of range"),
        (b"{\"a\": -1e400}", "number out of range"),
        (b"{\"a\": 1} x", "trailing characters"),
        (b"{\"a\": \"\\ud800\"}", "not JSON"),
        (b"{\"a\": \"\x01\"}", "control character"),
        (b"{\"a\"", "line 1 column 4"),
        (b"", "not JSON"),
        (b"{\"a\": \"\xff\"}", "not UTF-8 at byte 7"),
        (b"{\"a\": \"\xc3\"}", "not UTF-8 at byte 7"),
    ] {
        assert!(refused(json).contains(why), "{}", refused(json));
    }
}

#[test]
fn deep_and_long_payloads_are_refused() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert!(Payload::parse(nested(DEPTH_MAX).as_bytes()).is_ok());
    for depth in [DEPTH_MAX + 1, 1000, 100_000] {
        let message = refused(nested(depth).as_bytes());
        assert!(message.contains("deeper than 100 levels at byte 104"), "{message}");
    }
    assert!(refused("[".repeat(1 << 20).as_bytes()).contains("deeper"));
    let brackets = format!("{{\"a\":\"{}\\\"[\"}}", "[{".repeat(500));
    assert!(Payload::parse(brackets.as_bytes()).is_ok());
    let mut deep = json!(1);
    for _ in 0..DEPTH_MAX {
        deep = json!([deep]);
    }
    assert!(Payload::from_value(json!({ "a": deep })).unwrap_err().message.contains("deeper"));

    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(10 << 20));
    assert!(refused(long.as_bytes()).contains("10485768 bytes, at most 1048576"));
    assert!(Payload::from_value(json!({"a": "x".repeat(BYTES_MAX)})).unwrap_err().message.contains("more"));
    let fits = format!("{{\"a\":\"{}\"}}", "x".repeat(BYTES_MAX - 8));
    assert_eq!(Payload::parse(fits.as_bytes()).unwrap().to_bytes().len(), BYTES_MAX);
}

#[test]
fn a_hundred_thousand_fields_are_read_quickly() {
    let start = Instant::now();
    let fields: Vec<String> = (0..95_000).map(|at| format!("\"{at:05}\":1")).collect();
    let read = Payload::parse(format!("{{{}}}", fields.join(",")).as_bytes()).unwrap();
    assert_eq!(read.as_map().len(), 95_000);
    assert!(start.elapsed().as_secs() < 5);
    let fields: Vec<String> = (0..100_000).map(|at| format!("\"field {at:05}\":1")).collect();
    assert!(refused(format!("{{{}}}", fields.join(",")).as_bytes()).contains("at most"));
}

#[test]
fn updates_change_what_they_name() {
    let path = |text: &str| Path::parse(text).unwrap();
    let set = |fields: Value, key: Option<&str>| Update::Set { payload: payload(fields), key: key.map(path) };
    let before = json!({"a": 1, "b": {"c": 2}, "l": [{"x": 1}, {"y": 2}, 3]});
    for (update, after) in [
        (
            set(json!({"b": {"d": 3}, "e": null}), None),
            json!({"a": 1, "b": {"d": 3}, "e": null, "l": before["l"]}),
        ),
        (set(json!({"d": 3}), Some("b")), json!({"a": 1, "b": {"c": 2, "d": 3}, "l": before["l"]})),
        (set(json!({"d": 3}), Some("a.n")), json!({"a": {"n": {"d": 3}}, "b": {"c": 2}, "l": before["l"]})),
        (
            set(json!({"z": 0}), Some("l[]")),
            json!({"a": 1, "b": {"c": 2}, "l": [{"x": 1, "z": 0}, {"y": 2, "z": 0}, {"z": 0}]}),
        ),
        (
            set(json!({"z": 0}), Some("l[1].y")),
            json!({"a": 1, "b": {"c": 2}, "l": [{"x": 1}, {"y": {"z": 0}}, 3]}),
        ),
        (set(json!({"z": 0}), Some("l[9]")), before.clone()),
        (set(json!({}), None), before.clone()),
        (Update::Overwrite(payload(json!({"q": 1}))), json!({"q": 1})),
        (Update::Clear, json!({})),
        (
            Update::DeleteKeys(vec![path("a"), path("b.c"), path("l[].x"), path("no.such"), path("l[2]")]),
            json!({"b": {}, "l": [{}, {"y": 2}]}),
        ),
        (Update::DeleteKeys(vec![path("l[]")]), json!({"a": 1, "b": {"c": 2}, "l": []})),
        (Update::DeleteKeys(vec![path("a.b"), path("l[7]"), path("b[]")]), before.clone()),
    ] {
        let mut own = payload(before.clone());
        let is_changed = own.update(&update).unwrap();
        assert_eq!(own, payload(after.clone()), "{update:?}");
        assert_eq!(is_changed, after != before, "{update:?}");
    }
}

#[test]
fn an_update_beyond_the_limits_changes_nothing() {
    let mut own = payload(json!({"a": "x".repeat(BYTES_MAX / 2)}));
    let before = own.clone();
    let more = Update::Set { payload: payload(json!({"b": "x".repeat(BYTES_MAX / 2)})), key: None };
    assert!(own.update(&more).unwrap_err().message.contains("at most"));
    assert_eq!(own, before);
    let mut own = payload(json!({"a": 1}));
    let deep = (0..30).map(|_| "a").collect::<Vec<_>>().join(".");
    for _ in 0..10 {
        let inner = own.as_map().clone();
        _ = own.update(&Update::Set {
            payload: Payload { map: inner },
            key: Some(Path::parse(&format!("n.{deep}")).unwrap()),
        });
        assert!(own.checked().is_ok());
    }
    assert!(!fits(&own.clone().into_value(), 60) && fits(&own.into_value(), DEPTH_MAX));
}

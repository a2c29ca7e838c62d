//! Pages in the order of a field against a plain sort, over points in memory, checkpoints and segments.

mod common;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use common::Noise;
use common::points::{SMALL, filled, number, open};
use serde_json::{Value, json};
use stratann_node::collections::{Chosen, Collection, OrderBy, OrderStats, OrderedPage, Spec};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_payload::{Filter, IndexKind as FieldKind, Path, Predicate, Schema};
use stratann_storage::Quiet;

/// Payload of each point.
type Twin = BTreeMap<ExternalId, Value>;

fn by(field: &str, descending: bool) -> OrderBy {
    OrderBy { field: Path::parse(field).unwrap(), descending }
}

fn where_of(text: &str) -> Arc<Predicate> {
    Arc::new(Filter::from_where(text).unwrap().compile())
}

fn schema() -> Schema {
    let mut schema = Schema::new();
    for (path, kind) in [("v", FieldKind::Float), ("few", FieldKind::Integer), ("day", FieldKind::Datetime)] {
        schema.add(Path::parse(path).unwrap(), kind).unwrap();
    }
    schema
}

/// The value at which a payload comes; a day as its number.
fn value_of(payload: &Value, field: &str, descending: bool) -> Option<f64> {
    let of = |value: &Value| match field {
        "day" => value.as_str()?.strip_prefix("2024-05-")?.parse().ok(),
        _ => value.as_f64(),
    };
    let own = payload.get(field)?;
    let all = own.as_array().map_or_else(|| vec![own], |own| own.iter().collect());
    let values = all.into_iter().filter_map(of);
    match descending {
        true => values.max_by(f64::total_cmp),
        false => values.min_by(f64::total_cmp),
    }
}

/// All points in an order, with the values at which they come.
fn sorted(
    twin: &Twin,
    (field, descending): (&str, bool),
    is_wanted: &dyn Fn(&Value) -> bool,
) -> Vec<(f64, ExternalId)> {
    let wanted = twin.iter().filter(|(_, payload)| is_wanted(payload));
    let mut all: Vec<_> = wanted
        .filter_map(|(id, payload)| Some((value_of(payload, field, descending)?, id.clone())))
        .collect();
    all.sort_by(|one, two| order_of(one, two, descending));
    all
}

fn order_of(one: &(f64, ExternalId), two: &(f64, ExternalId), descending: bool) -> Ordering {
    let values = one.0.total_cmp(&two.0);
    if descending { values.reverse() } else { values }.then_with(|| one.1.cmp(&two.1))
}

fn payload(noise: &mut Noise) -> Value {
    let v = match noise.below(8) {
        0 => json!([noise.below(40), noise.below(40)]),
        1 => json!([noise.below(40), "text", null, noise.below(40) as f64 / 4.0]),
        2 => json!("none"),
        3 => json!(-(noise.below(1000) as f64) / 8.0),
        _ => json!(noise.below(40)),
    };
    let day = format!("2024-05-{:02}", 1 + noise.below(28));
    json!({"v": v, "few": noise.below(2), "day": day, "n": noise.below(10)})
}

fn change(points: &Collection, twin: &mut Twin, noise: &mut Noise) {
    let ids: Vec<_> = (0..1 + noise.below(30)).map(|_| number(noise.below(300))).collect();
    let ids: Vec<_> = ids.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    match noise.below(4) {
        0 => {
            points.delete(&ids).unwrap();
            ids.iter().for_each(|id| _ = twin.remove(id));
        }
        1 => {
            let value = json!({"v": noise.below(40)});
            points.set_payload(Chosen::Ids(&ids), value.to_string().as_bytes(), None).unwrap();
            for id in &ids {
                if let Some(payload) = twin.get_mut(id) {
                    payload["v"] = value["v"].clone();
                }
            }
        }
        _ => {
            let payloads: Vec<Value> = ids.iter().map(|_| payload(noise)).collect();
            let texts: Vec<String> = payloads.iter().map(Value::to_string).collect();
            let given: Vec<_> = texts.iter().map(|text| Some(text.as_bytes())).collect();
            let vectors: Vec<u8> = ids.iter().flat_map(|_| filled(noise.below(9))).collect();
            points.upsert_points(&ids, &vectors, &given).unwrap();
            twin.extend(ids.into_iter().zip(payloads));
        }
    }
}

/// Compares all pages with a sort of what is there when each of them is read. Points change between pages.
fn scroll_while_it_changes(points: &Collection, twin: &mut Twin, noise: &mut Noise) {
    let (field, descending) = (["v", "few", "day"][noise.below(3) as usize], noise.below(2) == 0);
    let filter = (noise.below(3) == 0).then(|| where_of("n < 4"));
    let is_wanted = |payload: &Value| filter.is_none() || payload["n"].as_u64().is_some_and(|n| n < 4);
    let order = by(field, descending);
    let limit = 1 + noise.below(60) as usize;
    let (mut after, mut last): (Option<String>, Option<(f64, ExternalId)>) = (None, None);
    loop {
        let page = points.scroll_ordered(&order, after.as_deref(), limit, filter.as_ref()).unwrap();
        let mut expected = sorted(twin, (field, descending), &is_wanted);
        if let Some(last) = &last {
            expected.retain(|own| order_of(own, last, descending).is_gt());
        }
        let has_more = expected.len() > limit;
        expected.truncate(limit);
        let found: Vec<_> = page.points.iter().map(|point| point.id.clone()).collect();
        assert!(
            found.iter().eq(expected.iter().map(|(_, id)| id)),
            "{order:?} {last:?}: {found:?} {expected:?}"
        );
        for point in &page.points {
            let json: Value = serde_json::from_slice(point.payload.as_ref().unwrap()).unwrap();
            assert_eq!(json, twin[&point.id]);
        }
        assert_eq!(page.next.is_some(), has_more);
        if page.next.is_none() {
            return;
        }
        (after, last) = (page.next, expected.pop());
        match noise.below(8) {
            0 => points.checkpoint(&Quiet).unwrap(),
            1 => points.compact(&Quiet).unwrap(),
            2..=4 => change(points, twin, noise),
            _ => {}
        }
    }
}

#[test]
fn pages_are_a_plain_sort_while_points_change() {
    for seed in 0..4 {
        let place = tempfile::tempdir().unwrap();
        let node = open(place.path()).unwrap();
        let points = node.create_collection("points", SMALL).unwrap();
        points.set_schema(&schema()).unwrap();
        let (mut twin, mut noise) = (Twin::new(), Noise(seed));
        for _ in 0..25 {
            change(&points, &mut twin, &mut noise);
            scroll_while_it_changes(&points, &mut twin, &mut noise);
        }
        assert!(points.facts().unwrap().segments.len() < 40 && !twin.is_empty());
    }
}

/// Writes points `n` with `v` counting down and one value of `few`.
fn fill(points: &Collection, ids: std::ops::Range<u64>, count: u64) {
    let dim = points.spec().unwrap().dim;
    for first in ids.clone().step_by(1000) {
        let some: Vec<u64> = (first..ids.end.min(first + 1000)).collect();
        let texts: Vec<String> = some
            .iter()
            .map(|n| {
                json!({"v": count - n, "few": 7, "n": n % 1000, "list": [n / 10, count - n]}).to_string()
            })
            .collect();
        let given: Vec<_> = texts.iter().map(|text| Some(text.as_bytes())).collect();
        let mut noise = Noise(first);
        let vectors: Vec<u8> =
            (0..some.len() * dim).flat_map(|_| (noise.below(99) as f32).to_le_bytes()).collect();
        let ids: Vec<_> = some.into_iter().map(number).collect();
        points.upsert_points(&ids, &vectors, &given).unwrap();
    }
}

fn ids(page: &OrderedPage) -> Vec<u64> {
    let number = |id: &ExternalId| match id {
        ExternalId::Number(number) => *number,
        other => panic!("{other} is no number"),
    };
    page.points.iter().map(|point| number(&point.id)).collect()
}

#[test]
fn a_page_reads_parts_of_an_index_and_not_all_rows() {
    const ROWS: u64 = 12_000;
    for kind in [
        IndexKind::DiskGraph,
        IndexKind::HybridIvf,
        IndexKind::GridIvf,
        IndexKind::GpuIvf,
        IndexKind::RemoteHnsw,
        IndexKind::Flat,
    ] {
        let place = tempfile::tempdir().unwrap();
        let node = open(place.path()).unwrap();
        let points = node.create_collection("points", Spec { kind: Some(kind), ..SMALL }).unwrap();
        let mut fields = schema();
        fields.add(Path::parse("list").unwrap(), FieldKind::Integer).unwrap();
        points.set_schema(&fields).unwrap();
        fill(&points, 0..ROWS, ROWS);
        points.compact(&Quiet).unwrap();
        assert_eq!(points.facts().unwrap().segments[0].kind, Some(kind));
        let page = |field: &str, descending, after: Option<&str>| {
            points.scroll_ordered(&by(field, descending), after, 10, None).unwrap()
        };
        // Different values: the part of the index where the page begins, and an id for each point and one more.
        let first = page("v", false, None);
        assert_eq!(ids(&first), (ROWS - 10..ROWS).rev().collect::<Vec<_>>(), "{kind:?}");
        assert_eq!(first.stats, OrderStats { values: 12, ids: 11, walked_ids: 0, payloads: 0 });
        let second = page("v", false, first.next.as_deref());
        assert_eq!(ids(&second), (ROWS - 20..ROWS - 10).rev().collect::<Vec<_>>());
        assert!(second.stats.values < 25 && second.stats.ids < 13, "{:?}", second.stats);
        assert_eq!(ids(&page("v", true, None)), (0..10).collect::<Vec<_>>());
        // One value: a walk over the ids behind the last one, and no look-up.
        let first = page("few", true, None);
        assert_eq!((ids(&first), first.stats.ids), ((0..10).collect(), 0));
        let second = page("few", true, first.next.as_deref());
        assert_eq!((ids(&second), second.stats.walked_ids), ((10..20).collect(), 11));
        // Several values: a payload for each row that comes to be looked at.
        let lists = page("list", false, None);
        assert_eq!(lists.points.len(), 10);
        assert!(lists.stats.payloads < 40 && lists.stats.values < 40, "{:?}", lists.stats);
        // Few matches: their payloads alone.
        let filter = where_of("n = 5 and v > 11000");
        let few = points.scroll_ordered(&by("v", false), None, 10, Some(&filter)).unwrap();
        assert_eq!((ids(&few), few.stats.values, few.stats.ids, few.stats.payloads), (vec![5], 0, 1, 1));
        node.verify("points").unwrap();
    }
}

#[test]
fn what_has_no_order_is_refused_with_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let node = open(place.path()).unwrap();
    let points = node.create_collection("points", SMALL).unwrap();
    fill(&points, 0..200, 200);
    let error = |field: &str, after: Option<&str>| {
        points.scroll_ordered(&by(field, false), after, 10, None).unwrap_err().message
    };
    assert!(
        error("v", None).contains("the field v has no index that keeps an order"),
        "{}",
        error("v", None)
    );
    assert!(error("v", None).contains("stratann collection schema --set v=float"));
    points.compact(&Quiet).unwrap();
    let mut fields = schema();
    fields.add(Path::parse("name").unwrap(), FieldKind::Keyword).unwrap();
    points.set_schema(&fields).unwrap();
    assert!(error("name", None).contains("no index that keeps an order"));
    assert!(error("v", None).contains("not made yet"), "{}", error("v", None));
    points.compact(&Quiet).unwrap();
    let page = points.scroll_ordered(&by("v", false), None, 10, None).unwrap();
    let next = page.next.unwrap();
    assert!(
        points
            .scroll_ordered(&by("v", true), Some(&next), 10, None)
            .unwrap_err()
            .message
            .contains("another order")
    );
    assert!(error("few", Some(&next)).contains("another order"));
    assert!(error("v", Some("7")).contains("names no place"));
    // Another kind of index of the same field has another order.
    fields.remove(&Path::parse("v").unwrap());
    fields.add(Path::parse("v").unwrap(), FieldKind::Datetime).unwrap();
    points.set_schema(&fields).unwrap();
    points.compact(&Quiet).unwrap();
    assert!(error("v", Some(&next)).contains("another order"));
    assert!(points.scroll_ordered(&by("v", false), None, 10, None).unwrap().points.is_empty());
}

//! The nearest points of a query in a collection, as JSON and as text.

use serde::Serialize;
use serde_json::Value;
use stratann_node::collections::{Hit, PayloadJson};
use stratann_node::rows::ExternalId;
use stratann_payload::{Path, Payload};
use stratann_storage::Result;
use stratann_storage::error::quoted;

use super::result_file::Extras;

/// A field of payloads that is shown beside each result.
#[derive(Clone, Debug)]
pub(super) struct TextField(Path);

impl TextField {
    /// Reads the path of a field.
    ///
    /// # Errors
    /// `BadInput` for a text that is no path.
    pub(super) fn parse(text: &str) -> Result<TextField> {
        Path::parse(text).map(TextField)
    }

    /// The text of a result: what the path reaches, separated by commas. `None` where it reaches nothing.
    pub(super) fn of(&self, hit: &Hit) -> Option<String> {
        let payload = Payload::from_stored(hit.payload.as_deref()?).ok()?;
        let reached = self.0.reached(payload.as_map());
        let texts: Vec<String> = reached.into_iter().map(text_of).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The nearest points of a query, nearest first.
#[derive(Serialize)]
pub(super) struct Answer<'a> {
    query: usize,
    ids: Vec<&'a ExternalId>,
    distances: Vec<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    texts: Option<Vec<Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payloads: Option<Vec<Option<PayloadJson<'a>>>>,
}

impl<'a> Answer<'a> {
    pub(super) fn of(query: usize, hits: &'a [Hit], extras: Extras<'_>) -> Answer<'a> {
        let payloads = || hits.iter().map(|hit| hit.payload.as_deref().map(PayloadJson)).collect();
        Answer {
            query,
            ids: hits.iter().map(|hit| &hit.id).collect(),
            distances: hits.iter().map(|hit| hit.distance).collect(),
            texts: extras.text.map(|field| hits.iter().map(|hit| field.of(hit)).collect()),
            payloads: extras.payloads.then(payloads),
        }
    }
}

/// The results of a query as text: in a line without a field, else in a line each.
pub(super) fn shown_text(query: usize, hits: &[Hit], shown_max: usize, field: Option<&TextField>) -> String {
    let Some(field) = field else {
        let near: Vec<String> =
            hits.iter().take(shown_max).map(|hit| format!("{} ({:.4})", hit.id, hit.distance)).collect();
        return format!("  query {query}: {}\n", near.join("  "));
    };
    let mut out = format!("  query {query}:\n");
    for hit in hits {
        let text = field.of(hit).map_or("-".into(), |text| quoted(&text));
        out += &format!("    {} ({:.4})  {text}\n", hit.id, hit.distance);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(payload: Option<&str>) -> Hit {
        Hit {
            id: ExternalId::Number(7),
            distance: 0.5,
            payload: payload.map(|json| json.as_bytes().to_vec()),
            vector: None,
        }
    }

    #[test]
    fn a_field_is_a_text() {
        let hit = hit(Some(r#"{"title":"a \u001b b","n":{"x":[1,2]},"all":[{"t":"p"},{"t":"q"}]}"#));
        let text = |path: &str| TextField::parse(path).unwrap().of(&hit);
        assert_eq!(text("title").unwrap(), "a \u{1b} b");
        assert_eq!(text("n.x").unwrap(), "[1,2]");
        assert_eq!(text("all[].t").unwrap(), "p, q");
        assert_eq!(text("none"), None);
        assert!(TextField::parse("a..b").is_err());
        let field = TextField::parse("title").unwrap();
        let shown = shown_text(3, std::slice::from_ref(&hit), 5, Some(&field));
        assert_eq!(shown, "  query 3:\n    7 (0.5000)  a \u{fffd} b\n");
    }

    #[test]
    fn an_answer_has_what_was_asked_for() {
        let hits = [hit(Some(r#"{"a":1}"#)), hit(None)];
        let field = TextField::parse("a").unwrap();
        let json = |extras| serde_json::to_string(&Answer::of(0, &hits, extras)).unwrap();
        assert_eq!(json(Extras::default()), r#"{"query":0,"ids":[7,7],"distances":[0.5,0.5]}"#);
        let all = json(Extras { payloads: true, text: Some(&field) });
        assert!(all.ends_with(r#""texts":["1",null],"payloads":[{"a":1},null]}"#), "{all}");
    }
}

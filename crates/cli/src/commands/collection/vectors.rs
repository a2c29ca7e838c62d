//! Vectors of a collection by name: options that say them, and how they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Spec, Specs};
use stratann_params::{IndexKind, list_of};
use stratann_storage::{Error, Result};

use crate::data_folder::plain;

/// What vectors are.
#[derive(Serialize)]
struct SpecDocument {
    dim: usize,
    metric: &'static str,
    dtype: &'static str,
    kind: &'static str,
}

impl SpecDocument {
    fn of(spec: &Spec) -> SpecDocument {
        SpecDocument {
            dim: spec.dim,
            metric: spec.metric.name(),
            dtype: spec.dtype.name(),
            kind: spec.kind.map_or("auto", IndexKind::name),
        }
    }

    fn text(&self) -> String {
        let SpecDocument { dim, metric, dtype, kind } = self;
        format!("{dim} × {dtype}, {metric}, kind {kind}")
    }
}

/// The vectors of a collection: fields of its only ones, or those of each name.
#[derive(Serialize)]
pub(super) struct SpecsDocument {
    #[serde(flatten)]
    only: Option<SpecDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vectors: Option<BTreeMap<String, SpecDocument>>,
}

impl SpecsDocument {
    pub(super) fn of(specs: &Specs) -> SpecsDocument {
        match specs.only() {
            Ok(spec) => SpecsDocument { only: Some(SpecDocument::of(spec)), vectors: None },
            Err(_) => {
                let each = specs.iter().map(|own| (own.name.clone(), SpecDocument::of(&own.spec)));
                SpecsDocument { only: None, vectors: Some(each.collect()) }
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = (&str, &SpecDocument)> {
        let named = self.vectors.iter().flatten().map(|(name, own)| (name.as_str(), own));
        self.only.iter().map(|own| ("", own)).chain(named)
    }

    /// All in one line.
    pub(super) fn text(&self) -> String {
        let each = self.all().map(|(name, own)| match name {
            "" => own.text(),
            name => format!("{name}: {}", own.text()),
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// Dimensions, type, metric and kind for a table.
    pub(super) fn columns(&self) -> Vec<String> {
        let column = |of: &dyn Fn(&SpecDocument) -> String| {
            let each = self.all().map(|(name, own)| match name {
                "" => of(own),
                name => format!("{name} {}", of(own)),
            });
            each.collect::<Vec<_>>().join(", ")
        };
        vec![
            column(&|own| own.dim.to_string()),
            column(&|own| own.dtype.into()),
            column(&|own| own.metric.into()),
            column(&|own| own.kind.into()),
        ]
    }
}

/// Reads what vectors of some names are: `NAME=DIM[,METRIC][,TYPE][,KIND]`, the later parts in any order.
///
/// # Errors
/// `BadInput` for what is none.
pub(super) fn specs(given: &[String]) -> Result<Specs> {
    let all = given.iter().map(|text| named_spec(text)).collect::<Result<Vec<_>>>()?;
    Specs::named(all).map_err(plain)
}

fn named_spec(text: &str) -> Result<(String, Spec)> {
    let wrong = |why: String| {
        Error::bad_input(format!("--vectors {text}: {why}; give NAME=DIM[,METRIC][,TYPE][,KIND]"))
    };
    let (name, rest) = text.rsplit_once('=').ok_or_else(|| wrong("there is no =".into()))?;
    let mut parts = rest.split(',').map(str::trim);
    let dim = parts.next().and_then(|dim| dim.parse().ok());
    let dim = dim.ok_or_else(|| wrong("the dimensions are no whole number".into()))?;
    let mut spec = Spec { dim, metric: Metric::L2, dtype: DType::F32, kind: None };
    for part in parts {
        if let Some(metric) = Metric::from_name(part) {
            spec.metric = metric;
        } else if let Some(dtype) = DType::from_name(part) {
            spec.dtype = dtype;
        } else if let Some(kind) = IndexKind::parse(part) {
            spec.kind = Some(kind);
        } else if part != "auto" {
            let kinds = ["auto"].into_iter().chain(IndexKind::ALL.map(IndexKind::name));
            let known =
                Metric::ALL.map(Metric::name).into_iter().chain(DType::ALL.map(DType::name)).chain(kinds);
            return Err(wrong(format!("{part:?} is none of {}", list_of(known))));
        }
    }
    Ok((name.into(), spec))
}

/// Reads files of vectors by name: `NAME=FILE`.
///
/// # Errors
/// `BadInput` for what is none.
pub(super) fn files(given: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let file = |text: &String| named(text, "FILE").map(|(name, path)| (name, path.into()));
    given.iter().map(file).collect()
}

/// Reads columns of vectors by name: `NAME=COLUMN`.
///
/// # Errors
/// `BadInput` for what is none, and for a name with two columns.
pub(super) fn named_columns(given: &[String]) -> Result<Vec<(String, String)>> {
    distinct(given.iter().map(|text| named(text, "COLUMN")).collect::<Result<_>>()?)
}

/// Reads columns of the vectors of a collection: `NAME=COLUMN` where they have names, and else one column.
///
/// # Errors
/// As [`named_columns`]; `BadInput` for a name that is none, and several columns without names.
pub(super) fn columns(given: &[String], specs: &Specs) -> Result<Vec<(String, String)>> {
    if specs.has_names() {
        return distinct(given.iter().map(|text| known_column(text, specs)).collect::<Result<_>>()?);
    }
    match given {
        [] => Ok(Vec::new()),
        [column] => Ok(vec![(String::new(), column.clone())]),
        _ => Err(Error::bad_input(
            "--vectors is given several times, and vectors of the collection have no names; give one column",
        )),
    }
}

/// A name of a collection and its column. A name may have a `=`, too.
fn known_column(text: &str, specs: &Specs) -> Result<(String, String)> {
    let column = |name: &str| text.strip_prefix(name)?.strip_prefix('=').filter(|column| !column.is_empty());
    let known = specs.iter().filter_map(|own| Some((own.name.clone(), column(&own.name)?.to_string())));
    if let Some(own) = known.max_by_key(|(name, _)| name.len()) {
        return Ok(own);
    }
    let own = named(text, "COLUMN")?;
    specs.find(Some(&own.0)).map_err(plain)?;
    Ok(own)
}

/// A name before the first `=`, and what is behind it.
fn named(text: &str, what: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, own)) if !name.is_empty() && !own.is_empty() => Ok((name.into(), own.into())),
        _ => Err(Error::bad_input(format!("--vectors {text}: give NAME={what}"))),
    }
}

/// Refuses a name with two columns.
fn distinct(columns: Vec<(String, String)>) -> Result<Vec<(String, String)>> {
    let mut names = BTreeSet::new();
    match columns.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((name, _)) => {
            Err(Error::bad_input(format!("--vectors names two columns for {name:?}; give one for each name")))
        }
        None => Ok(columns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_read_from_options() {
        let own = |text: &str| named_spec(text).map_err(|e| e.message);
        let spec =
            Spec { dim: 384, metric: Metric::Cosine, dtype: DType::F16, kind: Some(IndexKind::GridIvf) };
        assert_eq!(own("a=b=384, grid-ivf,f16,cosine"), Ok(("a=b".into(), spec)));
        let usual = Spec { dim: 2, metric: Metric::L2, dtype: DType::F32, kind: None };
        assert_eq!(own("x=2,auto"), Ok(("x".into(), usual)));
        for (text, why) in [("x", "no ="), ("x=", "dimensions"), ("x=2,l3", "\"l3\" is none of l2, ip")] {
            let error = own(text).unwrap_err();
            assert!(error.contains(why) && error.contains("give NAME=DIM"), "{error}");
        }
        assert!(specs(&["a=2".into(), "a=3".into()]).unwrap_err().message.contains("twice"));
        let text = SpecsDocument::of(&specs(&["b=2".into(), "a=3,ip".into()]).unwrap()).text();
        assert_eq!(text, "a: 3 × f32, ip, kind auto; b: 2 × f32, l2, kind auto");
        assert_eq!(files(&["a=b=c".into()]).unwrap(), [("a".to_string(), PathBuf::from("b=c"))]);
        assert!(files(&["a".into()]).is_err() && files(&["=a".into()]).is_err());
    }

    #[test]
    fn columns_are_read_from_options() {
        let own = |name: &str, column: &str| (name.to_string(), column.to_string());
        let named = specs(&["a=2".into(), "a=b=2".into()]).unwrap();
        let read =
            |given: &[&str]| columns(&given.iter().map(|text| text.to_string()).collect::<Vec<_>>(), &named);
        assert_eq!(read(&["a=x", "a=b=y"]).unwrap(), [own("a", "x"), own("a=b", "y")]);
        for (given, why) in [
            (&["x"][..], "give NAME=COLUMN"),
            (&["a="], "give NAME=COLUMN"),
            (&["c=x"], "unknown vector name \"c\"; there are \"a\", \"a=b\""),
            (&["a=x", "a=y"], "two columns for \"a\""),
        ] {
            let error = read(given).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
        let one = Spec { dim: 2, metric: Metric::L2, dtype: DType::F32, kind: None }.into();
        assert_eq!(columns(&["a=b".into()], &one).unwrap(), [own("", "a=b")]);
        assert!(columns(&["a".into(), "b".into()], &one).unwrap_err().message.contains("have no names"));
        assert!(named_columns(&["a".into()]).is_err());
    }
}

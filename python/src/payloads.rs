//! Payloads, filters and indexed fields of collections, as the Python half passes them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use stratann_node::collections::{Chosen, Collection, PayloadChanged, Result};
use stratann_node::rows::ExternalId;
use stratann_payload::value::Update;
use stratann_payload::{Filter, IndexKind, Path, Payload, Predicate, Schema};
use stratann_storage::Error;

use crate::collections::{PyId, plain};

/// A filter of the Python half, and whether conditions that no index answers are refused.
#[derive(FromPyObject)]
pub(crate) struct PyFilter(FilterForm, bool);

/// JSON as bytes, or text as a str.
enum FilterForm {
    Json(PyBackedBytes),
    Where(String),
}

impl PyFilter {
    /// Reads and compiles the filter; says whether conditions that no index answers are refused.
    pub(crate) fn predicate(&self) -> stratann_storage::Result<(Arc<Predicate>, bool)> {
        let filter = match &self.0 {
            FilterForm::Json(json) => Filter::from_json(json)?,
            FilterForm::Where(text) => Filter::from_where(text)?,
        };
        Ok((Arc::new(filter.compile()), self.1))
    }

    /// Reads and compiles the filter, and checks that the collection has the indexes that it asks for.
    pub(crate) fn compile(&self, collection: &Collection) -> Result<Arc<Predicate>> {
        let (predicate, is_indexed_only) = self.predicate()?;
        if is_indexed_only {
            collection.check_indexed(&predicate)?;
        }
        Ok(predicate)
    }
}

impl<'py> FromPyObject<'_, 'py> for FilterForm {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<FilterForm> {
        Ok(match object.cast::<PyBytes>() {
            Ok(_) => FilterForm::Json(object.extract()?),
            Err(_) => FilterForm::Where(object.extract()?),
        })
    }
}

/// Points whose payloads change: a list of ids, or a filter.
pub(crate) enum PyChosen {
    Ids(Vec<ExternalId>),
    Matching(PyFilter),
}

impl<'py> FromPyObject<'_, 'py> for PyChosen {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<PyChosen> {
        Ok(match object.cast::<PyList>() {
            Ok(_) => PyChosen::Ids(plain(object.extract::<Vec<PyId>>()?)),
            Err(_) => PyChosen::Matching(object.extract()?),
        })
    }
}

impl PyChosen {
    /// Changes payloads of these points.
    pub(crate) fn change(&self, collection: &Collection, update: &PyUpdate) -> Result<PayloadChanged> {
        let update = update.read()?;
        match self {
            PyChosen::Ids(ids) => collection.change_payload(Chosen::Ids(ids), update),
            PyChosen::Matching(filter) => {
                collection.change_payload(Chosen::Matching(&filter.compile(collection)?), update)
            }
        }
    }
}

/// A change of payloads: what is done, a payload as JSON, and paths.
#[derive(FromPyObject)]
pub(crate) struct PyUpdate(String, Option<PyBackedBytes>, Vec<String>);

impl PyUpdate {
    fn read(&self) -> Result<Update> {
        let payload = || Payload::parse(self.1.as_deref().unwrap_or_default());
        let mut keys = self.2.iter().map(|key| Path::parse(key));
        Ok(match self.0.as_str() {
            "set" => Update::Set { payload: payload()?, key: keys.next().transpose()? },
            "overwrite" => Update::Overwrite(payload()?),
            "delete_keys" => Update::DeleteKeys(keys.collect::<stratann_storage::Result<_>>()?),
            _ => Update::Clear,
        })
    }
}

/// Reads which fields have which indexes.
pub(crate) fn schema_of(fields: &[(String, Vec<String>)]) -> stratann_storage::Result<Schema> {
    let mut schema = Schema::new();
    for (field, kinds) in fields {
        let path = Path::parse(field)?;
        for name in kinds {
            let kind = IndexKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let names = stratann_params::list_of(IndexKind::ALL.map(|kind| format!("{:?}", kind.name())));
                Error::bad_input(format!("the index of the field {field} is {name:?}; use {names}"))
            })?;
            schema.add(path.clone(), kind)?;
        }
    }
    Ok(schema)
}

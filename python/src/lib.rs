//! Compiled half of the Python package: calls of the engine with arrays.
//!
//! It is private. The Python half checks arrays and has defaults and documentation.

mod build;
mod collections;
mod error;
mod index;
mod memory;
mod parameters;
mod payloads;
mod points;
mod process;
mod report;
mod router;
mod split;
mod stats;
mod vectors;
mod work;

use pyo3::prelude::*;

/// Serialises a value for `json.loads`.
fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|e| error::named(py, "Error", &format!("cannot be written as JSON: {e}")))
}

#[pymodule]
fn _stratann(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<index::Index>()?;
    module.add_class::<collections::DataFolder>()?;
    module.add_class::<index::SearchParameters>()?;
    module.add_class::<stats::Stats>()?;
    module.add_class::<router::Router>()?;
    module.add_class::<router::Landmarks>()?;
    module.add_class::<split::Split>()?;
    module.add_function(wrap_pyfunction!(build::build, module)?)?;
    module.add_function(wrap_pyfunction!(points::build_points, module)?)?;
    module.add_function(wrap_pyfunction!(build::groundtruth, module)?)?;
    module.add_function(wrap_pyfunction!(build::parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(parameters::parameters, module)?)?;
    module.add_function(wrap_pyfunction!(parameters::unknown, module)?)?;
    module.add_function(wrap_pyfunction!(index::search_together, module)?)?;
    module.add_function(wrap_pyfunction!(report::delete, module)?)?;
    module.add_function(wrap_pyfunction!(report::recall, module)?)?;
    module.add_function(wrap_pyfunction!(report::tune, module)?)?;
    module.add_function(wrap_pyfunction!(report::verify, module)?)?;
    module.add_function(wrap_pyfunction!(split::run_task, module)?)?;
    module.add_function(wrap_pyfunction!(split::shape_of, module)?)?;
    module.add_function(wrap_pyfunction!(vectors::read_vectors, module)?)?;
    module.add_function(wrap_pyfunction!(vectors::write_vectors, module)?)
}

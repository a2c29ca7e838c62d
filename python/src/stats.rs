//! The cost of a search, as a dict that is made when it is asked for: most callers of single queries never do.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use stratann_core::query::QueryStats;
use stratann_engine::kinds::{reported_params, setting};
use stratann_engine::search::{Answers, Latency, SearchOptions};
use stratann_params::Key;
use stratann_params::search::SearchSettings;

use crate::index::account;

/// Counters, times and memory of a search, without its results.
#[pyclass(frozen)]
pub(crate) struct Stats {
    answers: Answers,
    options: SearchOptions,
}

impl Stats {
    /// `answers` may be without ids and distances.
    pub(crate) fn new(answers: Answers, options: SearchOptions) -> Stats {
        Stats { answers, options }
    }
}

#[pymethods]
impl Stats {
    /// The dict that `SearchResult.stats` is.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_dict(py, &self.answers, &self.options)
    }
}

fn stats_dict<'py>(
    py: Python<'py>,
    answers: &Answers,
    options: &SearchOptions,
) -> PyResult<Bound<'py, PyDict>> {
    let count = answers.latency_ns.len();
    let total = &answers.stats;
    let (per_query, totals) = (PyDict::new(py), PyDict::new(py));
    for (&name, value) in QueryStats::NAMES.iter().zip(total.values()) {
        totals.set_item(name, value)?;
        per_query.set_item(name, value as f64 / count.max(1) as f64)?;
    }
    let params = PyDict::new(py);
    params.set_item(Key::<SearchSettings>::k, answers.params.k)?;
    let setting = setting(&answers.params);
    params.set_item(Key::<SearchSettings>::search_list, setting.search_list)?;
    params.set_item(Key::<SearchSettings>::stop_slack, setting.slack.unwrap_or(f32::INFINITY))?;
    if let Some(nprobe) = setting.nprobe {
        params.set_item(Key::<SearchSettings>::nprobe, nprobe)?;
        params.set_item(Key::<SearchSettings>::early_stop, setting.early_stop)?;
    }
    for (name, value) in reported_params(&answers.params) {
        if params.contains(name)? {
            continue;
        }
        match value {
            Value::Bool(value) => params.set_item(name, value)?,
            Value::String(value) => params.set_item(name, value)?,
            Value::Number(value) if value.is_f64() => params.set_item(name, value.as_f64())?,
            Value::Number(value) => params.set_item(name, value.as_u64())?,
            Value::Null | Value::Array(_) | Value::Object(_) => params.set_item(name, py.None())?,
        }
    }
    params.set_item(Key::<SearchSettings>::mode, answers.params.mode.name())?;
    params.set_item(Key::<SearchSettings>::in_flight, options.in_flight)?;
    let percentiles = Latency::of(&answers.latency_ns);
    let latency = PyDict::new(py);
    latency.set_item("mean", percentiles.mean)?;
    latency.set_item("p50", percentiles.p50)?;
    latency.set_item("p95", percentiles.p95)?;
    latency.set_item("p99", percentiles.p99)?;
    let stats = PyDict::new(py);
    stats.set_item("queries", count)?;
    stats.set_item("seconds", answers.seconds)?;
    stats.set_item("qps", if answers.seconds > 0.0 { count as f64 / answers.seconds } else { 0.0 })?;
    stats.set_item("latency_us", latency)?;
    let stages = PyDict::new(py);
    let each = |ns: u64| ns as f64 / 1000.0 / count.max(1) as f64;
    stages.set_item("route", each(answers.times.route))?;
    stages.set_item("access", each(answers.times.access()))?;
    stages.set_item("verify", each(answers.times.verify))?;
    stats.set_item("stage_us", stages)?;
    stats.set_item("cpu_us", answers.cpu_us as f64 / count.max(1) as f64)?;
    stats.set_item("threads", options.threads)?;
    stats.set_item("params", params)?;
    stats.set_item("per_query", per_query)?;
    stats.set_item("totals", totals)?;
    stats.set_item("io_backend", &answers.io_backend)?;
    stats.set_item("memory", account(py, &answers.account)?)?;
    Ok(stats)
}

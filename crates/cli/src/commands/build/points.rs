//! Builds of points: ids and payloads of a Parquet, Arrow or JSON lines file stay with the index.

use std::path::{Path, PathBuf};

use stratann_engine::build::BuildOptions;
use stratann_import::Columns;
use stratann_import::spool::FilePoints;
use stratann_node::points::SpooledPoints;
use stratann_payload::Schema;
use stratann_storage::{Error, Result};

use crate::output::Output;
use crate::point_columns::{field_indexes, payload_columns};
use crate::progress::ProgressPrinter;

/// Options of points.
#[derive(clap::Args)]
pub(super) struct PointArgs {
    /// Keep ids of any form, and payloads, of a .parquet, .arrow .feather .ipc .arrows or .jsonl .ndjson file: all
    /// columns, none, or those named, separated by commas
    ///
    /// Searches take filters over payloads then (--where, --filter) and return ids that are numbers, UUIDs or strings.
    /// --ids is the name of the column of ids [default: id, or the row number where there is no such column].
    #[arg(
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        num_args = 0..=1,
        default_missing_value = "all",
        conflicts_with = "from",
        help_heading = "Points"
    )]
    payload: Option<Vec<String>>,
    /// With --payload: column of vectors, lists of numbers [default: vector, or the only column of lists of numbers]
    #[arg(long, value_name = "COLUMN", requires = "payload", help_heading = "Points")]
    vectors: Option<String>,
    /// With --payload: indexes of a field, by which filters find rows without reading payloads; may be repeated
    ///
    /// Kinds are keyword, integer, float, bool, datetime, uuid and text; several are separated by commas.
    #[arg(long, value_name = "FIELD=KIND", requires = "payload", help_heading = "Points")]
    set: Vec<String>,
}

/// What is kept of a file.
pub(super) struct Kept {
    columns: Columns,
    schema: Schema,
}

impl PointArgs {
    /// Whether ids and payloads are kept.
    pub(super) fn are_given(&self) -> bool {
        self.payload.is_some()
    }

    /// What is kept, with the column of ids that `ids` names; `None` for vectors alone.
    ///
    /// # Errors
    /// An empty name of a column; what is no field, or no kind of index.
    pub(super) fn read(&self, ids: Option<PathBuf>) -> Result<Option<Kept>> {
        let Some(payload) = &self.payload else { return Ok(None) };
        let mut schema = Schema::new();
        for (field, kinds) in field_indexes(&self.set)? {
            for kind in kinds {
                schema.add(field.clone(), kind)?;
            }
        }
        let columns = Columns {
            ids: ids.map(|name| name.to_string_lossy().into_owned()),
            vectors: self.vectors.iter().map(|column| (String::new(), column.clone())).collect(),
            payload: payload_columns(payload)?,
        };
        Ok(Some(Kept { columns, schema }))
    }
}

impl Kept {
    /// Reads the points of a file into files beside the new index.
    ///
    /// # Errors
    /// As [`FilePoints::spool`].
    pub(super) fn spool(
        self,
        file: &Path,
        index: &Path,
        common: &BuildOptions,
        output: Output,
    ) -> Result<SpooledPoints> {
        let points = FilePoints {
            file,
            columns: &self.columns,
            index,
            metric: common.metric,
            schema: self.schema,
            ram_budget: common.ram_budget,
        };
        let printer = ProgressPrinter::new(output);
        let spooled = points.spool(&printer);
        printer.finish();
        spooled
    }
}

/// The error of a file of points where vectors alone are built from.
///
/// # Errors
/// `BadInput` for a file that only `--payload` reads.
pub(super) fn check_vectors_alone(file: &Path) -> Result<()> {
    let suffix = file.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
    match suffix.as_deref() {
        Some("arrow" | "feather" | "ipc" | "arrows" | "jsonl" | "ndjson") => Err(Error::bad_input(format!(
            "{} has points; give --payload to keep their ids and payloads, or --payload none for ids alone",
            file.display()
        ))),
        _ => Ok(()),
    }
}

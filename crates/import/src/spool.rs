//! Points of a file for an index that keeps them.

use std::path::Path;

use stratann_kernel::{DType, Metric};
use stratann_node::points::{Spool, SpooledPoints};
use stratann_node::rows::ExternalId;
use stratann_payload::Schema;
use stratann_storage::{Progress, Result};

use crate::file::{Columns, FileRows, Rows, Total, Wanted, open, shapes_of};

/// What is read of a file of points, and for which index.
pub struct FilePoints<'a> {
    /// The file.
    pub file: &'a Path,
    /// Columns that are read.
    pub columns: &'a Columns,
    /// Folder of the index.
    pub index: &'a Path,
    /// How its vectors are compared.
    pub metric: Metric,
    /// Indexes of fields.
    pub schema: Schema,
    /// Limit of memory, bytes.
    pub ram_budget: Option<u64>,
}

impl FilePoints<'_> {
    /// Reads the points into files beside the index.
    ///
    /// # Errors
    /// A file that is none of points, or has rows that are none; an id that two rows have; a RAM budget without room
    /// for the ids; a disk that is full; an interruption.
    pub fn spool(self, progress: &dyn Progress) -> Result<SpooledPoints> {
        let FilePoints { file, columns, index, metric, schema, ram_budget } = self;
        let shapes = shapes_of(file, columns, &[""])?;
        let wanted = |&(dim, dtype): &_| Wanted { name: String::new(), dim, dtype, metric };
        let wanted: Vec<Wanted> = shapes.iter().map(wanted).collect();
        let mut rows = open(file, columns, &wanted)?;
        let shape = shapes.first().copied().unwrap_or((0, DType::F32));
        let mut spool = Spool::create(file, index, shape, schema, ram_budget)?;
        begin_stage(progress, "reading", file, &*rows);
        let mut shown = 0;
        while let Some(batch) = rows.next_rows()? {
            progress.check_interrupted()?;
            let vectors = batch.vectors.first().map_or(&[][..], |own| &own.vectors);
            spool.push(ids_of(&batch).as_deref(), vectors, &batch.payloads)?;
            progress.advance(rows.done().saturating_sub(shown));
            shown = rows.done();
        }
        spool.finish()
    }
}

fn ids_of(batch: &Rows) -> Option<Vec<ExternalId>> {
    batch.ids.as_ref().map(|ids| ids.iter().map(ExternalId::of_filter).collect())
}

/// Begins the stage of reading a file.
pub fn begin_stage(progress: &dyn Progress, what: &str, path: &Path, rows: &dyn FileRows) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (total, unit) = match rows.total() {
        Total::Rows(rows) => (rows, "rows"),
        Total::Bytes(bytes) => (bytes, "bytes"),
    };
    progress.stage(&format!("{what} {name}"), total, unit);
}

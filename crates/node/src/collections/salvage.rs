//! Collections of a data folder whose storage engine is damaged: their segments are searched, and nothing is written.

use std::collections::BTreeSet;
use std::path::Path;

use stratann_storage::{Error, Progress, Result};

use super::catalogue;
use super::limits::MemoryLimits;
use super::point::Manifest;
use super::spec::Specs;
use crate::rows::{Batch, Options, Rows};
use crate::segments::{Layout, LayoutCopy, Left};

/// Opens what the folders of collections say of their segments. Points that were in no segment are not there, and
/// those that were replaced or deleted since may be.
///
/// # Errors
/// `why`, where no collection has a copy; else as [`Rows::open`].
pub(super) fn open(
    folder: &Path,
    segments: &Path,
    why: Error,
    (options, progress): (&Options, &dyn Progress),
) -> Result<(Rows, Left)> {
    let folders = std::fs::read_dir(segments).into_iter().flatten().flatten();
    let copies: Vec<LayoutCopy> = folders.filter_map(|own| LayoutCopy::read(&own.path())).collect();
    let (mut rows, mut left, mut names) = (Batch::new(), Left::new(), BTreeSet::new());
    for copy in &copies {
        let Some(specs) = Specs::decode(&copy.spec) else { continue };
        // Of two of a name the newer one counts: the older one was dropped.
        if copies.iter().any(|other| other.name == copy.name && other.collection > copy.collection) {
            continue;
        }
        put(&mut rows, copy, &specs);
        let numbers = copy.layout.segments.iter().map(|own| (copy.collection, own.number));
        left.extend(numbers.zip(copy.left.iter().cloned()));
        names.insert(copy.name.clone());
    }
    if names.is_empty() {
        return Err(why);
    }
    let message = format!(
        "{}. Until then segments are searched as they were after the last checkpoint or merge of each collection ({}), \
         and nothing is written",
        why.message,
        names.into_iter().collect::<Vec<_>>().join(", ")
    );
    progress.note(&message);
    Ok((Rows::read_only(folder, options, rows, Error { message, ..why })?, left))
}

/// The rows of a collection that has nothing but segments.
fn put(rows: &mut Batch, copy: &LayoutCopy, specs: &Specs) {
    rows.append(catalogue::creation(&copy.name, copy.collection, specs, &MemoryLimits::default()));
    let points = copy.left.iter().map(|left| u64::from(left.count())).sum();
    let manifest = Manifest { seq: copy.seq, points, tail_points: 0, ..Manifest::default() };
    rows.put(Manifest::key(copy.collection), &manifest.encode());
    let layout = Layout::new(copy.seq, copy.layout.next_segment, copy.layout.segments.clone());
    rows.put(Layout::key(copy.collection), &layout.encode());
}

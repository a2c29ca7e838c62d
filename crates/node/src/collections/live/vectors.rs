//! Changes of some vectors of points: each is written again as a whole, with its other vectors and its payload.

use std::sync::Arc;

use super::slot::{Live, Slot};
use crate::collections::delta::Point;
use crate::collections::error::{Error, Result};
use crate::collections::parts::point_in_segments;
use crate::collections::work::{PartialVectors, Work};

impl Slot {
    /// The points of a change of some vectors, with all that they have, for whoever has the turn.
    ///
    /// # Errors
    /// `BadInput` for an id without a point, and for points that are too large together; `Corrupt` and `Io` of
    /// segments.
    pub(super) fn with_all_vectors(&self, live: &Live, work: &Work) -> Result<Work> {
        let (points, state) = live.delta.reader().points(&work.ids);
        let changes = work.partial.iter().flatten();
        work.whole(work.ids.iter().zip(points).zip(changes).map(|((id, point), change)| {
            let point = point.map_or_else(|| point_in_segments(&state, id), |point| Ok(Some(point)))?;
            let point = point.ok_or_else(|| {
                Error::bad_input(format!("there is no point {id} whose vectors could change; upsert it"))
            })?;
            Ok(self.changed(point, change))
        }))
    }

    /// Record and payload of a point with other vectors.
    fn changed(&self, point: Point, change: &PartialVectors) -> (Vec<u8>, Option<Arc<[u8]>>) {
        let mut vectors: Vec<Option<&[u8]>> = point.vectors.iter().map(Option::as_deref).collect();
        for (name, vector) in change {
            if let Some(own) = vectors.get_mut(*name) {
                *own = vector.as_deref();
            }
        }
        (self.specs.record(&vectors).into_owned(), point.payload.as_deref().map(Arc::from))
    }
}

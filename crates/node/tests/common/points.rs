//! Points of collections, and a naive model of one.

use std::collections::BTreeMap;
use std::path::Path;

use stratann_kernel::distance::{Exact, inverse_norm};
use stratann_kernel::element::narrow_f16;
use stratann_kernel::{DType, Metric};
use stratann_node::collections::{Collection, Node, Options, Result, SegmentOptions, Spec};
use stratann_node::rows::ExternalId;
use stratann_payload::Payload;
use stratann_payload::value::Update;
use stratann_storage::Quiet;

/// Small vectors, for tests of what happens to points.
pub const SMALL: Spec = Spec { dim: 4, metric: Metric::L2, dtype: DType::F32, kind: None };

/// Most points of a collection that makes no segments.
pub const FULL: u64 = 16_000;

pub fn options() -> Options {
    let segments =
        SegmentOptions { checkpoint_rows: 4000, in_background: false, ..SegmentOptions::default() };
    Options { rows: super::options(), deltas_bytes: 64 << 20, segments, ram_budget: None }
}

/// Checkpoints and merges of a few points, in the background.
pub fn busy_options() -> Options {
    let segments = SegmentOptions {
        checkpoint_rows: 25,
        first_rows: 20,
        scanned_rows: 60,
        fold_payloads: 3,
        waiting_max: 1000,
        in_background: true,
        ..SegmentOptions::default()
    };
    Options { segments, ..options() }
}

pub fn open_busy(folder: &Path) -> Result<Node> {
    Node::open(folder, &busy_options(), &Quiet)
}

pub fn open(folder: &Path) -> Result<Node> {
    Node::open(folder, &options(), &Quiet)
}

pub fn number(number: u64) -> ExternalId {
    ExternalId::Number(number)
}

/// The same number in each component.
pub fn filled(value: u64) -> Vec<u8> {
    (value as f32).to_le_bytes().repeat(4)
}

/// Components as a collection of this type has them.
pub fn components(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => narrow_f16(values).collect(),
        DType::U8 => values.iter().map(|x| *x as u8).collect(),
        DType::I8 => values.iter().map(|x| *x as i8 as u8).collect(),
    }
}

/// What a collection must hold: the vector of each id, and the number of the change that wrote it; and payloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    pub points: BTreeMap<ExternalId, (u64, Vec<u8>)>,
    /// Compact JSON of the points that have a payload.
    pub payloads: BTreeMap<ExternalId, Vec<u8>>,
    pub seq: u64,
}

impl Model {
    /// Returns new and replaced ids.
    pub fn upsert(&mut self, seq: u64, ids: &[ExternalId], vectors: &[u8]) -> (u64, u64) {
        self.upsert_points(seq, ids, vectors, &vec![None; ids.len()])
    }

    /// The same with payloads as compact JSON.
    pub fn upsert_points(
        &mut self,
        seq: u64,
        ids: &[ExternalId],
        vectors: &[u8],
        payloads: &[Option<Vec<u8>>],
    ) -> (u64, u64) {
        let bytes = vectors.len() / ids.len();
        let before = self.points.clone();
        for (at, id) in ids.iter().enumerate() {
            self.points.insert(id.clone(), (seq, vectors[at * bytes..(at + 1) * bytes].to_vec()));
            match &payloads[at] {
                Some(json) => _ = self.payloads.insert(id.clone(), json.clone()),
                None => _ = self.payloads.remove(id),
            }
        }
        self.seq = seq;
        let new = self.points.len() - before.len();
        let touched = self.points.iter().filter(|(_, (of, _))| *of == seq).count();
        (new as u64, (touched - new) as u64)
    }

    /// Changes payloads. Returns how many points have another one now; without any it is no change.
    pub fn change_payload(&mut self, seq: u64, ids: &[ExternalId], update: &Update) -> u64 {
        let mut changed = 0;
        for id in ids.iter().collect::<std::collections::BTreeSet<_>>() {
            let Some((own, _)) = self.points.get_mut(id) else { continue };
            let earlier = self.payloads.get(id).map_or(Ok(Payload::new()), |json| Payload::parse(json));
            let mut payload = earlier.unwrap();
            if payload.update(update).unwrap() {
                changed += 1;
                *own = seq;
                match payload.is_empty() {
                    true => _ = self.payloads.remove(id),
                    false => _ = self.payloads.insert(id.clone(), payload.to_bytes()),
                }
            }
        }
        if changed > 0 {
            self.seq = seq;
        }
        changed
    }

    /// Returns the ids that had a point. Without any it is no change.
    pub fn delete(&mut self, seq: u64, ids: &[ExternalId]) -> u64 {
        let gone = ids.iter().filter(|id| self.points.remove(id).is_some()).count();
        ids.iter().for_each(|id| _ = self.payloads.remove(id));
        if gone > 0 {
            self.seq = seq;
        }
        gone as u64
    }

    /// Ids and distances of the nearest points, one distance at a time.
    pub fn nearest(&self, spec: &Spec, query: &[u8], k: usize) -> Vec<(ExternalId, f32)> {
        let mut exact = Exact::default();
        exact.set(spec.metric, spec.dtype, spec.dim, query);
        let mut all: Vec<_> = self
            .points
            .iter()
            .map(|(id, (_, vector))| {
                (id.clone(), exact.distance(vector, inverse_norm(spec.dtype, vector)) + 0.0)
            })
            .collect();
        // Points are in the order of ids, which a stable sort keeps.
        all.sort_by(|one, two| one.1.partial_cmp(&two.1).unwrap());
        all.truncate(k);
        all
    }

    /// Why a collection differs from the model, if it does.
    pub fn difference(&self, collection: &Collection) -> Option<String> {
        let mut after = None;
        let mut expected = self.points.iter();
        loop {
            let page = collection.scroll(after.as_ref(), 7).unwrap();
            for point in page.points {
                let found = (&point.id, &(point.seq, point.vector().to_vec()));
                match expected.next() {
                    Some(next) if next == found && self.payloads.get(&point.id) == point.payload.as_ref() => {
                    }
                    next => return Some(format!("{found:?} instead of {next:?}")),
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let missing = expected.next().map(|missing| format!("{missing:?} is missing"));
        let seq = collection.seq().unwrap();
        missing.or_else(|| (seq != self.seq).then(|| format!("change {seq} instead of {}", self.seq)))
    }
}

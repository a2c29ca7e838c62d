//! Notices ground truth of another index, of other vectors or of another metric.
//!
//! Results of a search carry exact distances, so they contradict wrong ground truth: an id that both name has two
//! distances, or a result is closer than the last true neighbour and is not one of them. Ties and rounding are no
//! contradictions; see [`Tolerance`].

use std::path::{Path, PathBuf};

use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};
use stratann_storage::{Error, Result};

use crate::dataset::GroundTruth;

/// Largest number of neighbours that are looked up in the index, because results tell nothing about them.
const SUSPECTS_MAX: usize = 64;
/// Results without a single true neighbour that show wrong ground truth where vectors cannot be looked up.
const RESULTS_MIN: usize = 100;
/// Neighbours that the index cannot number and no search found, which show it there.
const BEYOND_MIN: usize = 10;

/// A way in which distances of a metric are stored. All of them order neighbours alike.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// The format in which the engine returns results.
    Same,
    /// Square roots (l2).
    Root,
    /// Inner products.
    Negated,
    /// One minus the inner product.
    LessOne,
    /// Cosines.
    FromOne,
    /// Minus the cosine.
    PlusOne,
}

impl Form {
    fn all(metric: Metric) -> &'static [Form] {
        match metric {
            Metric::L2 => &[Form::Same, Form::Root],
            Metric::Ip => &[Form::Same, Form::Negated, Form::LessOne],
            Metric::Cosine => &[Form::Same, Form::FromOne, Form::PlusOne],
        }
    }

    /// Converts a stored distance to that of the engine.
    fn distance(self, stored: f32) -> f64 {
        let stored = f64::from(stored);
        match self {
            Form::Same => stored,
            Form::Root => stored * stored.abs(),
            Form::Negated => -stored,
            Form::LessOne => stored - 1.0,
            Form::FromOne => 1.0 - stored,
            Form::PlusOne => 1.0 + stored,
        }
    }
}

/// Largest difference of two computations of one distance: f32 sums in another order, expanded squares, vectors that
/// were rounded to f16.
#[derive(Clone, Copy, Debug)]
struct Tolerance {
    metric: Metric,
    /// Relative rounding error of a vector, with room.
    error: f64,
    /// Length of the query; for the inner product the largest distance of its results, which bounds the vectors.
    length: f64,
}

impl Tolerance {
    fn of(metric: Metric, dtype: DType, query: &[f32], distances: &[f32]) -> Tolerance {
        let length = match metric {
            Metric::L2 => query.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt(),
            Metric::Ip => {
                distances.iter().filter(|d| d.is_finite()).fold(0.0, |most, &d| f64::from(d.abs()).max(most))
            }
            Metric::Cosine => 1.0,
        };
        let error = match (dtype, metric) {
            (DType::F16, _) => 1.0 / 1024.0,
            (_, Metric::L2) => 4e-6,
            (_, Metric::Ip | Metric::Cosine) => 1e-4,
        };
        Tolerance { metric, error, length }
    }

    /// Returns the tolerance of a distance.
    fn at(&self, distance: f64) -> f64 {
        let relative = 1e-3 * distance.abs();
        let absolute = match self.metric {
            Metric::L2 => {
                // A row is at most so long.
                let (apart, both) = (distance.abs().sqrt(), 2.0 * self.length + distance.abs().sqrt());
                let moved = self.error * both;
                let expanded = 4e-6 * both * both;
                expanded + if self.error > 1e-4 { moved * (2.0 * apart + moved) } else { 0.0 }
            }
            Metric::Ip => self.error * 10.0 * self.length.max(distance.abs()),
            Metric::Cosine => self.error * 4.0,
        };
        relative + absolute
    }

    fn differ(&self, a: f64, b: f64) -> bool {
        (a - b).abs() > self.at(a.abs().max(b.abs()))
    }

    /// Whether `a` is closer than `b` by more than rounding.
    fn is_closer(&self, a: f64, b: f64) -> bool {
        a < b && self.differ(a, b)
    }
}

/// Results of some queries.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Number of the first query.
    pub first: usize,
    /// The queries: rows of the index' element type.
    pub queries: &'a [u8],
    /// Results per query.
    pub k: usize,
    /// `queries × k` ids.
    pub ids: &'a [u64],
    /// `queries × k` distances; infinite where there is no result.
    pub distances: &'a [f32],
}

/// Properties of an index that ground truth must agree with.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Metric of the index.
    pub metric: Metric,
    /// Type of its components.
    pub dtype: DType,
    /// Number of its vectors.
    pub rows: u64,
    /// Components of a vector.
    pub dim: usize,
}

/// A true neighbour that results say nothing about.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) query: usize,
    /// The vector of the query.
    pub(crate) vector: Vec<u8>,
    pub(crate) id: u64,
    position: usize,
    /// Smallest distance of the results of the query, none of which is a true neighbour.
    nearest: Option<f64>,
    tolerance: Tolerance,
}

/// Ground truth that is compared with results as they come.
#[derive(Clone, Debug)]
pub struct CheckedTruth {
    truth: GroundTruth,
    path: PathBuf,
    owner: Owner,
    /// Forms of distances that nothing has contradicted; empty where the file has no distances.
    forms: Vec<Form>,
    /// Results that are true neighbours, results in all.
    hits: usize,
    results: usize,
    /// Neighbours above the row numbers of the index, and whether a result was one.
    beyond: usize,
    is_beyond_found: bool,
    suspects_beyond: Vec<Suspect>,
    suspects_missed: Vec<Suspect>,
}

impl CheckedTruth {
    /// Checks what needs no results: order and range of distances, and that no query names an id twice.
    ///
    /// # Errors
    /// `BadInput` for ground truth that no index of this metric can have.
    pub fn new(truth: GroundTruth, path: &Path, owner: Owner) -> Result<CheckedTruth> {
        let mut checked = CheckedTruth {
            truth,
            path: path.to_path_buf(),
            owner,
            forms: Vec::new(),
            hits: 0,
            results: 0,
            beyond: 0,
            is_beyond_found: false,
            suspects_beyond: Vec::new(),
            suspects_missed: Vec::new(),
        };
        checked.refuse_twins()?;
        let is_zero = |query| checked.truth.distances_of(query).iter().all(|&d| d == 0.0);
        if (0..checked.truth.queries()).all(is_zero) {
            // Some tools write zeros for distances that they do not know.
            checked.truth.distances = Vec::new();
        }
        checked.find_forms()?;
        Ok(checked)
    }

    /// The ground truth.
    pub fn truth(&self) -> &GroundTruth {
        &self.truth
    }

    fn refuse_twins(&self) -> Result<()> {
        let mut sorted = Vec::new();
        for query in 0..self.truth.queries() {
            sorted.clear();
            sorted.extend_from_slice(self.truth.neighbours_of(query));
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                let name = self.path.display();
                return Err(Error::bad_input(format!(
                    "{name}: query {query} has neighbour {} twice, which ground truth never has; check that it is a \
                     ground-truth file, or compute it again",
                    pair[0]
                )));
            }
        }
        Ok(())
    }

    /// Keeps the forms whose distances ascend and are possible.
    fn find_forms(&mut self) -> Result<()> {
        let Owner { metric, dtype, .. } = self.owner;
        let name = self.path.display();
        let all = (0..self.truth.queries()).map(|query| (query, self.truth.distances_of(query)));
        let wrong = |(query, own): (usize, &[f32])| Some((query, *own.iter().find(|d| !d.is_finite())?));
        if let Some((query, distance)) = all.clone().find_map(wrong) {
            return Err(Error::bad_input(format!(
                "{name}: query {query} has distance {distance}, not a number; check that it is a ground-truth file, \
                 or compute it again"
            )));
        }
        if self.truth.distances.is_empty() {
            return Ok(());
        }
        let largest = all.clone().flat_map(|(_, own)| own).fold(0f32, |most, d| d.abs().max(most));
        let room = f64::from(largest) * if dtype == DType::F16 { 1e-2 } else { 1e-3 };
        let complaint = |form: Form| {
            all.clone().find_map(|(query, row)| {
                let mut before = if metric == Metric::Ip { f64::NEG_INFINITY } else { 0.0 };
                let most = if metric == Metric::Cosine { 2.0 } else { f64::INFINITY };
                row.iter().find_map(|&stored| {
                    let distance = form.distance(stored);
                    let is_wrong = distance < before - room || distance > most + room;
                    before = distance.max(before);
                    is_wrong.then_some((query, stored))
                })
            })
        };
        let complaints: Vec<_> = Form::all(metric).iter().map(|&f| (f, complaint(f))).collect();
        self.forms = complaints.iter().filter(|c| c.1.is_none()).map(|c| c.0).collect();
        if let (true, Some((_, Some((query, stored))))) = (self.forms.is_empty(), complaints.first()) {
            return Err(Error::bad_input(format!(
                "{name}: query {query} has distance {stored}, which does not ascend or is impossible under {}; it is \
                 ground truth of another metric: {}",
                metric.name(),
                self.remedy()
            )));
        }
        Ok(())
    }

    /// Compares results with the ground truth of their queries.
    ///
    /// # Errors
    /// `BadInput` for the first contradiction.
    pub fn compare(&mut self, found: &Found<'_>) -> Result<()> {
        let Owner { metric, dtype, rows, dim } = self.owner;
        let mut query_floats = vec![0f32; dim];
        let mut positions = Vec::new();
        let queries = found.queries.chunks_exact(dim * dtype.size());
        let results =
            found.ids.chunks_exact(found.k.max(1)).zip(found.distances.chunks_exact(found.k.max(1)));
        for ((query, vector), (ids, distances)) in (found.first..).zip(queries).zip(results) {
            widen(dtype, vector, &mut query_floats);
            let tolerance = Tolerance::of(metric, dtype, &query_floats, distances);
            positions.clear();
            positions
                .extend(self.truth.neighbours_of(query).iter().zip(0..).map(|(&id, at)| (u64::from(id), at)));
            positions.sort_unstable();
            let position = |id: u64| {
                positions.binary_search_by_key(&id, |p| p.0).ok().map(|at| -> usize { positions[at].1 })
            };
            let (mut shared, mut others) = (Vec::new(), Vec::new());
            for (&id, &distance) in ids.iter().zip(distances).filter(|r| r.1.is_finite()) {
                self.is_beyond_found |= id >= rows;
                match position(id) {
                    Some(at) => shared.push((at, id, f64::from(distance))),
                    None => others.push((id, f64::from(distance))),
                }
            }
            self.results += shared.len() + others.len();
            self.hits += shared.len();
            self.refuse_left_out(query, &others)?;
            self.suspect(query, vector, tolerance, &others);
            match self.truth.distances.is_empty() {
                true => self.compare_order(query, tolerance, &mut shared, &others)?,
                false => self.compare_distances(query, tolerance, &shared, &others)?,
            }
        }
        Ok(())
    }

    /// Refuses a result beside the neighbours of a query that has fewer than others: these are all rows that match its
    /// filter.
    fn refuse_left_out(&self, query: usize, others: &[(u64, f64)]) -> Result<()> {
        let count = self.truth.count_of(query);
        match others.first() {
            Some((id, _)) if count < self.truth.k => Err(Error::bad_input(format!(
                "{}: query {query} has {count} neighbours, all that match a filter, and id {id} is none of them; \
                 compute it again with the filters of this search: `stratann groundtruth --only-per-query`",
                self.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Keeps neighbours to look up in case that results do not settle them.
    fn suspect(&mut self, query: usize, vector: &[u8], tolerance: Tolerance, others: &[(u64, f64)]) {
        let rows = self.owner.rows;
        let nearest = others.iter().map(|o| o.1).reduce(f64::min);
        let suspect = |position: usize, id: u32| Suspect {
            query,
            vector: vector.to_vec(),
            id: u64::from(id),
            position,
            nearest,
            tolerance,
        };
        let ids = self.truth.neighbours_of(query);
        for (at, &id) in ids.iter().enumerate().filter(|n| u64::from(*n.1) >= rows) {
            self.beyond += 1;
            if self.suspects_beyond.len() < SUSPECTS_MAX {
                self.suspects_beyond.push(Suspect { nearest: None, ..suspect(at, id) });
            }
        }
        if self.hits > 0 {
            self.suspects_missed = Vec::new();
        } else if let (&[first, ..], &[.., last]) = (ids, ids)
            && !others.is_empty()
            && self.suspects_missed.len() + 2 <= SUSPECTS_MAX
        {
            self.suspects_missed.push(suspect(0, first));
            self.suspects_missed.push(suspect(ids.len() - 1, last));
        }
    }

    fn compare_distances(
        &mut self,
        query: usize,
        tolerance: Tolerance,
        shared: &[(usize, u64, f64)],
        others: &[(u64, f64)],
    ) -> Result<()> {
        let stored = self.truth.distances_of(query);
        let Some(&last) = stored.last() else { return Ok(()) };
        let complaint = |form: &Form| {
            let differs = |&&(at, _, distance): &&(usize, u64, f64)| {
                tolerance.differ(form.distance(stored[at]), distance)
            };
            let last = form.distance(last);
            let is_closer = |&&(_, distance): &&(u64, f64)| tolerance.is_closer(distance, last);
            let of_shared =
                || shared.iter().find(differs).map(|&(at, id, d)| self.differs(query, id, stored[at], d));
            let of_others =
                || others.iter().find(is_closer).map(|&(id, d)| self.is_closer(query, id, d, last));
            of_shared().or_else(of_others)
        };
        let complaints: Vec<Option<Error>> = self.forms.iter().map(complaint).collect();
        if complaints.iter().all(Option::is_some) {
            return complaints.into_iter().flatten().next().map_or(Ok(()), Err);
        }
        let mut is_kept = complaints.iter().map(Option::is_none);
        self.forms.retain(|_| is_kept.next().unwrap_or(true));
        Ok(())
    }

    /// Compares with ground truth without distances: those of shared ids ascend, and nothing closer is left out.
    fn compare_order(
        &self,
        query: usize,
        tolerance: Tolerance,
        shared: &mut [(usize, u64, f64)],
        others: &[(u64, f64)],
    ) -> Result<()> {
        shared.sort_unstable_by_key(|s| s.0);
        let mut farthest: Option<(u64, f64)> = None;
        for &(_, id, distance) in shared.iter() {
            if let Some((before, far)) = farthest.filter(|f| tolerance.is_closer(distance, f.1)) {
                return Err(Error::bad_input(format!(
                    "{}: query {query} has neighbour {before} before {id}, but {id} is closer in this index \
                     ({distance:.6} against {far:.6}); {}",
                    self.path.display(),
                    self.verdict()
                )));
            }
            if farthest.is_none_or(|f| distance > f.1) {
                farthest = Some((id, distance));
            }
        }
        let Some((_, far)) = farthest else { return Ok(()) };
        match others.iter().find(|o| tolerance.is_closer(o.1, far)) {
            Some(&(id, distance)) => Err(self.is_closer(query, id, distance, far)),
            None => Ok(()),
        }
    }

    /// The neighbours that must be looked up in the index, because results do not settle them: ids above its row
    /// numbers of which none was found, or all, where no result is a true neighbour.
    pub(crate) fn suspects(&self) -> Vec<&Suspect> {
        let beyond = self.suspects_beyond.iter().filter(|_| !self.is_beyond_found);
        let missed = self.suspects_missed.iter().filter(|_| self.hits == 0);
        beyond.chain(missed).collect()
    }

    /// Judges a suspect by its distance in the index; `None` where the index does not hold it.
    pub(crate) fn judge(&self, suspect: &Suspect, distance: Option<f32>) -> Result<()> {
        let &Suspect { query, id, position, nearest, tolerance, .. } = suspect;
        let Some(distance) = distance.map(f64::from) else { return Err(self.is_missing(query, id)) };
        match self.truth.distances.get(query * self.truth.k + position) {
            Some(&stored) if self.forms.iter().all(|f| tolerance.differ(f.distance(stored), distance)) => {
                Err(self.differs(query, id, stored, distance))
            }
            Some(_) => Ok(()),
            None => match nearest.filter(|&n| tolerance.is_closer(n, distance)) {
                Some(nearest) => Err(Error::bad_input(format!(
                    "{}: query {query} has neighbour {id} at distance {distance:.6}, but results of this index that it \
                     does not name are closer ({nearest:.6}); {}",
                    self.path.display(),
                    self.verdict()
                ))),
                None => Ok(()),
            },
        }
    }

    /// Judges by results alone, where vectors cannot be looked up.
    ///
    /// # Errors
    /// `BadInput` for many ids above the row numbers of which none was found, and for many results without a single
    /// true neighbour.
    pub fn judge_by_results(&self) -> Result<()> {
        if self.beyond >= BEYOND_MIN
            && !self.is_beyond_found
            && let Some(suspect) = self.suspects_beyond.first()
        {
            return Err(self.is_missing(suspect.query, suspect.id));
        }
        if self.hits == 0 && self.results >= RESULTS_MIN {
            return Err(Error::bad_input(format!(
                "{}: none of {} results is among its neighbours; {}",
                self.path.display(),
                self.results,
                self.verdict()
            )));
        }
        Ok(())
    }

    fn is_missing(&self, query: usize, id: u64) -> Error {
        Error::bad_input(format!(
            "{}: query {query} has neighbour {id}, which the index of {} vectors does not hold; {}",
            self.path.display(),
            self.owner.rows,
            self.verdict()
        ))
    }

    fn differs(&self, query: usize, id: u64, stored: f32, distance: f64) -> Error {
        Error::bad_input(format!(
            "{}: query {query} has neighbour {id} at distance {stored}, in this index it is at {distance:.6} ({}); it \
             is ground truth of another metric, other vectors or other queries: {}",
            self.path.display(),
            self.owner.metric.name(),
            self.remedy()
        ))
    }

    fn is_closer(&self, query: usize, id: u64, distance: f64, last: f64) -> Error {
        Error::bad_input(format!(
            "{}: query {query} lacks id {id}, which is at distance {distance:.6} in this index, closer than a \
             neighbour there ({last:.6}); {}",
            self.path.display(),
            self.verdict()
        ))
    }

    fn verdict(&self) -> String {
        format!(
            "it is ground truth of another index, of other queries or of another metric: {}",
            self.remedy()
        )
    }

    fn remedy(&self) -> String {
        let metric = self.owner.metric.name();
        format!(
            "compute it from the vectors of this index with `stratann groundtruth --metric {metric}` (for an index \
             built with --ids, with those ids)"
        )
    }
}

#[cfg(test)]
mod tests;

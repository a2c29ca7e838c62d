//! The settings of a `remote-hnsw` that calibration measures: numbers of clusters, for beams of several lengths.

use stratann_core::kinds::KindParams;
use stratann_core::kinds::remote_hnsw::{self, MAX_EF, MAX_PROBES};
use stratann_core::query::Params;
use stratann_params::Key;
use stratann_params::search::{RemoteSwitches, SearchSettings};
use stratann_storage::{Error, Result};

use super::facts::RemoteFacts;
use crate::curve::{CURVE_KS, Grid, Point, StopRule};
use crate::kinds::answers::Setting;
use crate::kinds::options::Switches;
use crate::kinds::questions::{SearchParams, grown};

/// Lengths of the beam in each cluster beyond that of the answer, by path. A cluster may hold a part of all vectors, so
/// the longest are those of large clusters.
const EF_BEYOND_K: [u32; 8] = [2, 14, 40, 100, 300, 1000, 3000, 10_000];

/// Settings that are measured for k results: numbers of clusters, each about a half more than the last, for beams up to
/// the first that is as long as half of the largest cluster.
pub(crate) fn grid(k: u32, facts: &RemoteFacts) -> Grid {
    let (clusters, largest) = (facts.clusters(), facts.sizes.max);
    let rows = facts.sizes.mean * f64::from(clusters);
    let rule = StopRule::by_slack(None, 0.0);
    let most = clusters.clamp(1, MAX_PROBES);
    let shorter = EF_BEYOND_K
        .iter()
        .filter(|&&beyond| u64::from(measured_k(k).saturating_add(beyond)) < largest / 2)
        .count();
    let beams = (shorter + 1).min(EF_BEYOND_K.len());
    let (mut path, mut effort) = (Vec::new(), 1u32);
    while effort < most {
        path.push((effort, rule));
        effort += (effort / 2).max(1);
    }
    path.push((most, rule));
    // A scan of all vectors compares each once. A search of graphs takes twice the time for a comparison, or more.
    let comparisons_max = if are_scanned(k, facts) { rows } else { rows / 2.0 };
    Grid { paths: vec![path; beams], comparisons_max, has_longer_beams: true, ..Grid::default() }
}

/// Whether most clusters are scanned, even with the shortest beam.
fn are_scanned(k: u32, facts: &RemoteFacts) -> bool {
    let params = remote_hnsw::Params {
        ef: measured_k(k).saturating_add(EF_BEYOND_K[0]),
        ..remote_hnsw::Params::new(k, 1)
    };
    params.scans(facts.sizes.mean as u64, (facts.record_bytes, facts.m.into()))
}

/// The k of the curve that a search for k results uses: its beams are longer than that.
fn measured_k(k: u32) -> u32 {
    CURVE_KS.into_iter().find(|&own| own >= k).unwrap_or(k)
}

/// The parameters of a point: its effort is the number of clusters, its path tells the beam.
pub(crate) fn params(k: u32, point: &Point) -> Params {
    let mut params = Params::remote_hnsw(k, point.effort.min(MAX_PROBES));
    if let KindParams::RemoteHnsw(own) = &mut params.kind {
        own.exact = point.is_exact();
        if let Some(beyond) = point.path.and_then(|path| EF_BEYOND_K.get(path as usize)) {
            own.ef = measured_k(k).saturating_add(*beyond).min(MAX_EF);
        }
    }
    params
}

impl SearchParams for remote_hnsw::Params {
    fn setting(&self, _: u32) -> Setting {
        Setting::of_clusters(self.nprobe, self.ef)
    }

    fn reported(&self) -> Vec<(&'static str, serde_json::Value)> {
        let mut all = vec![
            (Key::<SearchSettings>::nprobe, self.nprobe.into()),
            (Key::<RemoteSwitches>::ef, self.ef.into()),
        ];
        if self.exact {
            all.push(("exact", true.into()));
        }
        if !self.scan_clusters {
            all.push((Key::<RemoteSwitches>::scan_clusters, false.into()));
        }
        all
    }

    fn apply_switches(&mut self, _: u32, switches: &Switches, _: Option<&str>) -> Result<()> {
        let switches: RemoteSwitches = switches.own();
        self.ef = switches.ef.unwrap_or(self.ef);
        self.scan_clusters = switches.scan_clusters;
        if self.is_valid() {
            Ok(())
        } else {
            Err(Error::bad_input(format!("--ef is {}; use 1 to {MAX_EF}", self.ef)))
        }
    }

    fn with_setting(&self, setting: &Setting) -> Option<KindParams> {
        Some(KindParams::RemoteHnsw(remote_hnsw::Params {
            nprobe: setting.effort,
            ef: setting.search_list,
            ..*self
        }))
    }

    fn state_bytes(&self, k: u64) -> u64 {
        // Clusters, with a read and a want for each and for its fresh records; a beam; what was found.
        grown(self.nprobe.into(), 4 + 2 * 128) + grown(self.ef.into(), 8) + grown(k, 24)
    }

    fn is_exact(&self) -> bool {
        self.exact
    }

    fn fit_to_k(&mut self, k: u32) {
        self.ef = self.ef.max(k);
    }
}

//! Small indexes, built when a target starts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock};
use stratann_params::choices::CodePlace;

use stratann_core::format::directory::LocalKind;
use stratann_core::hash::{checksum, hash};
use stratann_engine::build::{BuildOptions, IndexKind, KindOptions, LocalPlan, build};
use stratann_engine::dataset::{Reader, Shape};
use stratann_engine::index::{Index, OpenBaselines, OpenOptions};
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::{Method, PartitionOptions, partition};
use stratann_engine::verify::verify;
use stratann_engine::{DType, Metric};
use stratann_storage::Quiet;
use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::hex;
use stratann_storage::names::FileName;
use stratann_storage::output::OutputPath;
use stratann_storage::profile::{
    ComputeCosts, DiskCosts, DistanceCost, LocalCosts, Origin, Profile, ReadLine,
};
use tempfile::TempDir;

use crate::edits;

/// Components of a vector.
pub const DIM: usize = 8;
/// Vectors of every index.
pub const ROWS: u64 = 240;
/// Servers of the index that is spread.
pub const SERVERS: usize = 3;

/// Rows in twelve clusters, as f32.
pub fn rows(count: u64, seed: u64) -> Vec<u8> {
    let number = |seed, row, i| (hash(seed, row, i) >> 40) as f32 / (1 << 24) as f32 - 0.5;
    let value = |row: u64, i| 8.0 * number(7, row % 12, i) + number(seed, row, i);
    (0..count).flat_map(|row| (0..DIM as u64).flat_map(move |i| value(row, i).to_le_bytes())).collect()
}

/// A folder with an index, and what it holds while it is valid.
pub struct Place {
    dir: TempDir,
    /// The index, opened before any change.
    pub index: Option<Index>,
    /// The manifest.
    pub manifest: Manifest,
    /// Content of each data file.
    pub files: BTreeMap<String, Vec<u8>>,
    // The file that differs from the valid one.
    changed: Mutex<Option<String>>,
}

/// The indexes that targets use.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// A `flat`, cosine.
    Flat,
    /// A `disk-graph` with its codes in RAM.
    Graph,
    /// A `disk-graph` with its codes in blocks.
    CodedGraph,
    /// A `hybrid-ivf` whose clusters are scanned.
    Scanned,
    /// A `hybrid-ivf` whose clusters are graphs.
    Graphs,
    /// A `hybrid-ivf` whose clusters are divided.
    Divided,
    /// The `disk-graph`, spread over servers.
    Spread,
    /// A `grid-ivf`.
    Grid,
    /// A `gpu-ivf` with the files of baselines.
    Gpu,
    /// A `remote-hnsw`.
    Remote,
}

/// Indexes that are one index on one machine.
pub const WHOLE: [Which; 9] = [
    Which::Flat,
    Which::Graph,
    Which::CodedGraph,
    Which::Scanned,
    Which::Graphs,
    Which::Divided,
    Which::Grid,
    Which::Gpu,
    Which::Remote,
];

/// The place of an index; it is built when it is first asked for.
pub fn place(which: Which) -> &'static Place {
    static PLACES: [OnceLock<Place>; 10] = [const { OnceLock::new() }; 10];
    PLACES[which as usize].get_or_init(|| Place::new(which))
}

fn options(which: Which) -> BuildOptions {
    let (kind, metric) = match which {
        Which::Flat => (IndexKind::Flat, Metric::Cosine),
        Which::Graph | Which::CodedGraph | Which::Spread => (IndexKind::DiskGraph, Metric::L2),
        Which::Scanned => (IndexKind::HybridIvf, Metric::Cosine),
        Which::Graphs | Which::Divided => (IndexKind::HybridIvf, Metric::L2),
        Which::Grid => (IndexKind::GridIvf, Metric::Cosine),
        Which::Gpu => (IndexKind::GpuIvf, Metric::Cosine),
        Which::Remote => (IndexKind::RemoteHnsw, Metric::Cosine),
    };
    let mut options = BuildOptions::new(kind, metric);
    (options.threads, options.calibration_queries) = (1, 20);
    options.profile = Some(profile());
    match &mut options.kind {
        KindOptions::Flat => {}
        KindOptions::GridIvf(own) => own.lists = Some(6),
        KindOptions::RemoteHnsw(own) => (own.partitions, own.m, own.ef_construction) = (Some(6), 4, 20),
        KindOptions::GpuIvf(own) => {
            (own.list_share, own.epsilon, own.code_bytes, own.baselines) = (0.05, 0.4, Some(4), true);
        }
        KindOptions::DiskGraph(own) => {
            (own.degree, own.build_list, own.head_share) = (12, 24, 0.1);
            own.nodes_per_block = matches!(which, Which::Graph | Which::Spread).then_some(12);
            if let Which::CodedGraph = which {
                own.codes = CodePlace::Disk;
            }
        }
        KindOptions::HybridIvf(own) => {
            own.clusters = Some(6);
            own.plan = LocalPlan::Uniform(match which {
                Which::Graphs => LocalKind::Graph,
                Which::Divided => LocalKind::Ivf,
                _ => LocalKind::Flat,
            })
            .into();
        }
    }
    options
}

fn open_options(which: Which) -> OpenOptions {
    let baselines = if let Which::Gpu = which { OpenBaselines::OnDisk } else { OpenBaselines::No };
    OpenOptions { baselines, ..OpenOptions::default() }
}

/// A path in the scratch folder that may be written over.
pub fn output(path: &Path) -> OutputPath {
    OutputPath::check(path, true, &[]).expect("an output path")
}

/// Costs of a machine: builds measure nothing.
pub fn profile() -> Profile {
    let distance = |fixed_ns, ns_per_unit| DistanceCost { fixed_ns, ns_per_unit, measured: Vec::new() };
    let name = || "none".to_string();
    let origin = Origin {
        cpu: name(),
        cores: 2,
        isa: name(),
        file_system: name(),
        device: name(),
        io_backend: "pread".into(),
    };
    Profile {
        format_version: 1,
        origin,
        seconds: 0.0,
        measurement: None,
        disk: DiskCosts {
            direct: true,
            file_bytes: 1 << 30,
            sequential_bytes_per_s: 1.2e9,
            latency_us: 90.0,
            latency_mean_us: 95.0,
            random: Vec::new(),
            alone: ReadLine { depth: 1, fixed_us: 86.0, ns_per_byte: 1.0 },
            loaded: ReadLine { depth: 32, fixed_us: 384.0, ns_per_byte: 21.8 },
        },
        compute: ComputeCosts {
            full_f32: distance(4.0, 0.1),
            full_f16: distance(4.0, 0.2),
            full_u8: distance(4.0, 0.05),
            codes: distance(10.0, 0.4),
        },
        local: Some(LocalCosts {
            alpha_flat: 1.5,
            hops_a: 3.0,
            hops_b: 2.0,
            beta_scan: 1.4,
            lists_a: 2.0,
            lists_b: -2.0,
        }),
    }
}

/// A scratch folder.
pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a scratch folder")
}

impl Place {
    fn new(which: Which) -> Place {
        let dir = folder();
        let shape = Shape { rows: ROWS, dim: DIM, dtype: DType::F32 };
        let base = Reader::from_memory(shape, rows(ROWS, 1)).expect("rows");
        if let Which::Spread = which {
            let whole = folder();
            build(&base, whole.path(), &options(which), &Quiet).expect("an index");
            let options = PartitionOptions {
                replicas: 2,
                method: Method::Random,
                threads: 1,
                ..PartitionOptions::new(SERVERS)
            };
            partition(whole.path(), dir.path(), &options, &Quiet).expect("a spread index");
        } else {
            build(&base, dir.path(), &options(which), &Quiet).expect("an index");
        }
        let (_, mut manifest) = Manifest::read(dir.path()).expect("a manifest");
        // A short manifest is parsed faster.
        manifest.curves.truncate(1);
        manifest.curves.iter_mut().for_each(|curve| curve.points.truncate(3));
        let read = |name: &FileName| std::fs::read(dir.path().join(name)).expect("a data file");
        let files = manifest.files.keys().map(|name| (name.to_string(), read(name))).collect();
        let index = manifest
            .spread
            .is_none()
            .then(|| Index::open(dir.path(), open_options(which)).expect("an index that opens"));
        Place { dir, index, manifest, files, changed: Mutex::new(None) }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The index as it was built.
    pub fn index(&self) -> &Index {
        self.index.as_ref().expect("an index on one machine")
    }

    /// The file that queries read.
    pub fn data(&self) -> &[u8] {
        let is_data = |name: &&String| {
            ["-blocks.bin", "-lists.bin", "-grid.bin", "-region.bin"].iter().any(|end| name.ends_with(end))
        };
        let name = self.files.keys().find(is_data).expect("a file of data");
        &self.files[name]
    }

    /// Replaces the content of one data file, and takes it into the manifest. The file that was replaced before
    /// becomes valid again. The folder is locked as long as the guard lives.
    pub fn replace(&self, name: &str, content: &[u8]) -> MutexGuard<'_, Option<String>> {
        let mut changed = self.changed.lock().expect("no panic");
        if let Some(before) = changed.take().filter(|before| before != name) {
            self.write(&before, &self.files[&before]);
        }
        self.write(name, content);
        *changed = Some(name.to_string());
        let mut manifest = self.manifest.clone();
        let entry = FileEntry { bytes: content.len() as u64, xxh3: hex(checksum(content)) };
        manifest.files.insert(FileName::parse(name).expect("the name of a data file"), entry);
        manifest.build_id = manifest.content_id();
        self.write("manifest-1.json", manifest.to_text().expect("a manifest").as_bytes());
        changed
    }

    /// Changes the data file that the first byte of `data` chooses, and checks and opens the index. Calls `search` with
    /// what opens, and with the name and the content of that file.
    pub fn with_changed_file(&self, data: &[u8], search: impl FnOnce(&Index, &str, &[u8])) {
        let (choice, data) = edits::first(data);
        let at = usize::from(choice) % self.files.len();
        let (name, valid) = self.files.iter().nth(at).expect("a data file");
        let content = edits::bytes(valid, data);
        let _lock = self.replace(name, &content);
        // Not every time, because it takes as long as everything else.
        if choice % 4 == 0 {
            verify(self.path(), &Quiet).expect("a report");
        }
        let Ok(index) = Index::open(self.path(), OpenOptions::default()) else { return };
        search(&index, name, &content);
        let _ = index.account();
    }

    /// Replaces the manifest. The data files must be the valid ones.
    pub fn replace_manifest(&self, text: &str) {
        self.write("manifest-1.json", text.as_bytes());
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.dir.path().join(name), content).expect("a file in the scratch folder");
    }
}

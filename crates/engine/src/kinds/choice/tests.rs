use std::io::Write;

use stratann_kernel::DType;
use stratann_storage::Quiet;

use super::*;

/// A set of zeros that takes no disk.
fn set(folder: &tempfile::TempDir, rows: u32, dim: u32, dtype: DType) -> Reader {
    let suffix = match dtype {
        DType::F32 => "fbin",
        DType::F16 => "f16bin",
        DType::U8 => "u8bin",
        DType::I8 => "i8bin",
    };
    let path = folder.path().join(format!("{rows}-{dim}.{suffix}"));
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&[rows, dim].map(u32::to_le_bytes).concat()).unwrap();
    file.set_len(8 + u64::from(rows) * u64::from(dim) * dtype.size() as u64).unwrap();
    Reader::open(&path).unwrap()
}

struct Shaped {
    rows: u32,
    dim: u32,
    dtype: DType,
    dimensions: f64,
    ram_budget: Option<u64>,
    search_budget: Option<u64>,
}

impl Shaped {
    fn new(rows: u32, dim: u32, dtype: DType, dimensions: f64) -> Shaped {
        Shaped { rows, dim, dtype, dimensions, ram_budget: None, search_budget: None }
    }

    fn searching_in(self, mib: u64) -> Shaped {
        Shaped { search_budget: Some(mib << 20), ..self }
    }

    fn built_in(self, mib: u64) -> Shaped {
        Shaped { ram_budget: Some(mib << 20), ..self }
    }

    fn pick(&self) -> Result<Choice> {
        let folder = tempfile::tempdir().unwrap();
        let base = set(&folder, self.rows, self.dim, self.dtype);
        let mut by_kind = OptionsByKind::default();
        by_kind.hybrid_ivf.search_budget = self.search_budget;
        let common = BuildOptions {
            ram_budget: self.ram_budget,
            threads: 2,
            ..BuildOptions::new(IndexKind::Flat, Metric::L2)
        };
        pick(&base, &crate::kinds::known::ON_DISK, &by_kind, &common, || Ok(self.dimensions))
    }
}

#[test]
fn the_fastest_kind_is_chosen() {
    use DType::{F16, F32, U8};
    // One read of 64 KiB holds all, so nothing is faster than a scan.
    let cases = [
        (Shaped::new(200, 16, F32, 12.0), IndexKind::Flat),
        (Shaped::new(300, 128, U8, 14.0), IndexKind::Flat),
        (Shaped::new(1, 16, F32, 0.0), IndexKind::Flat),
        // Measured in memory: a scan takes 0.5, 1.2 and 2.8 times as long as a graph.
        (Shaped::new(1000, 384, F32, 22.0), IndexKind::Flat),
        (Shaped::new(3000, 384, F32, 24.0), IndexKind::DiskGraph),
        (Shaped::new(10_000, 384, F32, 26.0), IndexKind::DiskGraph),
        // Measured from disk: 49 times.
        (Shaped::new(10_000, 384, F32, 26.0).searching_in(28), IndexKind::DiskGraph),
        // Measured in memory: 0.5, 0.9, 1.2 and 3.7 times.
        (Shaped::new(1000, 128, U8, 16.0), IndexKind::Flat),
        (Shaped::new(3000, 128, U8, 16.0), IndexKind::Flat),
        (Shaped::new(10_000, 128, U8, 17.0), IndexKind::DiskGraph),
        (Shaped::new(30_000, 128, U8, 17.0), IndexKind::DiskGraph),
        // Few reads lead to the neighbours: a graph takes less CPU time.
        (Shaped::new(100_000, 128, U8, 20.0), IndexKind::DiskGraph),
        (Shaped::new(59_722, 384, F16, 14.0), IndexKind::DiskGraph),
        (Shaped::new(2_000_000, 128, F32, 28.0), IndexKind::DiskGraph),
        // Measured from disk: 124 reads of a graph against 13 in inverted lists, a quarter of the queries per second.
        (Shaped::new(2_000_000, 128, F32, 28.0).searching_in(400), IndexKind::HybridIvf),
    ];
    for (shaped, kind) in cases {
        let choice = shaped.pick().unwrap();
        assert_eq!(choice.kind, kind, "{} × {}: {}", shaped.rows, shaped.dim, choice.why);
    }
}

#[test]
fn what_does_not_fit_is_left_out_before_any_work() {
    let large = || Shaped::new(1_000_000, 128, DType::U8, 14.0);
    assert_eq!(large().pick().unwrap().kind, IndexKind::DiskGraph);
    assert_eq!(large().searching_in(69).pick().unwrap().kind, IndexKind::DiskGraph);
    // The codes of a graph take 32 bytes for each vector.
    let choice = large().searching_in(37).pick().unwrap();
    assert_eq!(choice.kind, IndexKind::HybridIvf, "{}", choice.why);
    assert!(choice.why.contains("disk-graph would exceed"), "{}", choice.why);
    // Not even the tables of inverted lists fit.
    let choice = large().searching_in(20).pick().unwrap();
    assert_eq!(choice.kind, IndexKind::Flat, "{}", choice.why);
    let error = large().built_in(4).pick().unwrap_err();
    assert!(error.kind == ErrorKind::Budget && error.message.contains("MiB"), "{error}");
    // A kind that was chosen can be built and searched: its own plan takes the same budgets.
    for mib in [20, 21, 23, 25, 29, 33, 37, 45, 53, 69, 101] {
        let shaped = large().searching_in(mib).built_in(512);
        let kind = shaped.pick().unwrap().kind;
        let folder = tempfile::tempdir().unwrap();
        let base = set(&folder, shaped.rows, shaped.dim, shaped.dtype);
        let mut by_kind = OptionsByKind::default();
        by_kind.hybrid_ivf.search_budget = shaped.search_budget;
        let options =
            BuildOptions { kind: by_kind.of(kind), ..BuildOptions::new(IndexKind::Flat, Metric::L2) };
        let options = BuildOptions { ram_budget: shaped.ram_budget, ..options };
        crate::kinds::checked_plan(&base, &options).unwrap();
    }
}

#[test]
fn the_intrinsic_dimension_is_that_of_the_vectors() {
    let of = |free: usize| {
        let value = |row: usize, i: usize| {
            let at = |j: usize| (hash(3, row as u64, j as u64) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            if i < free { at(i) } else { at(i % free) * 0.5 }
        };
        let (rows, dim) = (12_000, 48);
        let bytes: Vec<u8> = (0..rows * dim).flat_map(|n| value(n / dim, n % dim).to_le_bytes()).collect();
        let base = Reader::from_memory(Shape { rows: rows as u64, dim, dtype: DType::F32 }, bytes).unwrap();
        intrinsic_dimensions(&base, Metric::L2, 1, &Quiet).unwrap()
    };
    assert!((3.0..5.0).contains(&of(4)), "{}", of(4));
    assert!((22.0..48.0).contains(&of(48)), "{}", of(48));
}

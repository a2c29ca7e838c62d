//! Cost of one visit of a cluster of vectors by its local index: the model of OrchANN (§5.1), with codes in the place
//! of vectors.
//!
//! A scan reads codes, not vectors, so the bytes of `T_flat` and `T_ivf` are those of list codes. The candidates that
//! remain are read with every local index and are left out. Where codes are in RAM, only edges are read. The paper's
//! `T_ivf` streams all sub-lists as one read; here each is a separate read. Otherwise the model would divide the
//! smallest clusters.

use super::knapsack::Item;
use crate::PAGE;
use crate::format::directory::LocalKind;

/// Costs of reads and distances on a machine with a busy disk, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitCosts {
    /// Cost of a read, independent of its length.
    pub read_us: f64,
    /// Cost of a byte that is read.
    pub byte_us: f64,
    /// Cost of a distance to a full vector (C_vec).
    pub distance_us: f64,
    /// α_flat: the cost of a member in a scan, in distances.
    pub alpha_flat: f64,
    /// β_scan: bytes read per byte of sub-list codes that is needed.
    pub beta_scan: f64,
    /// a and b of the hops in a graph: H(N) = max(1, a ln N + b).
    pub hops: (f64, f64),
    /// a and b of the number of scanned sub-lists of a divided cluster.
    pub lists: (f64, f64),
}

/// ListSizes of list codes and graphs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListSizes {
    /// Bytes of a member in list codes.
    pub member_bytes: f64,
    /// Bytes of list codes without members.
    pub overhead_bytes: f64,
    /// Most bytes of one read.
    pub read_max: f64,
    /// Neighbours of a node of a graph.
    pub degree: f64,
}

/// A local index of a cluster: its kind, and whether its codes are in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalIndex {
    /// Kind of the local index.
    pub kind: LocalKind,
    /// Whether its codes are in RAM. Those of a graph always are.
    pub in_ram: bool,
}

/// All local indexes, in the order of [`VisitCostModel::items`].
pub const LOCAL_INDEXES: [LocalIndex; 5] = [
    LocalIndex { kind: LocalKind::Flat, in_ram: false },
    LocalIndex { kind: LocalKind::Ivf, in_ram: false },
    LocalIndex { kind: LocalKind::Flat, in_ram: true },
    LocalIndex { kind: LocalKind::Ivf, in_ram: true },
    LocalIndex { kind: LocalKind::Graph, in_ram: true },
];

/// Members of the smallest cluster to which the constants are fitted.
pub const FITTED_MIN: u64 = 128;

/// The model of one index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisitCostModel {
    /// Unit costs of the machine.
    pub unit_costs: UnitCosts,
    /// Sizes of the index.
    pub sizes: ListSizes,
}

impl VisitCostModel {
    /// Number of sub-lists of a divided cluster: OrchANN §5.1, nlist = max(4, min(⌊√N⌋, nlist_max)).
    pub fn lists_in(members: u64) -> u64 {
        (stratann_kernel::sqrt(members as f32) as u64).clamp(4, 4096).min(members.max(1))
    }

    /// Number of sub-lists that a visit scans at equal local recall.
    pub fn lists_scanned(&self, members: u64) -> f64 {
        let lists = Self::lists_in(members) as f64;
        // Clusters below the smallest measured one scan the same share of their sub-lists.
        let least = Self::lists_in(FITTED_MIN) as f64;
        let share = self.fitted(self.unit_costs.lists, members.max(FITTED_MIN)) / lists.max(least);
        (share * lists).clamp(1.0, lists)
    }

    /// Number of hops of a graph search at equal local recall.
    pub fn hops(&self, members: u64) -> f64 {
        self.fitted(self.unit_costs.hops, members.max(FITTED_MIN)).min(members.max(1) as f64)
    }

    fn fitted(&self, (a, b): (f64, f64), members: u64) -> f64 {
        (a * ln(members.max(1) as f64) + b).max(1.0)
    }

    /// Cost of a visit, microseconds.
    pub fn visit_us(&self, index: LocalIndex, members: u64) -> f64 {
        let (p, s, n) = (&self.unit_costs, &self.sizes, members as f64);
        let scan = |members: f64| p.alpha_flat * members * p.distance_us;
        let lists = Self::lists_in(members) as f64;
        // Without a measurement, a divided cluster is assumed to scan all of its sub-lists.
        let probes = if members < FITTED_MIN { lists } else { self.lists_scanned(members) };
        let scanned = n / lists * probes;
        match index.kind {
            LocalKind::Flat if index.in_ram => scan(n),
            LocalKind::Flat => {
                let bytes = n * s.member_bytes + s.overhead_bytes;
                ceil(bytes / s.read_max) * p.read_us + bytes * p.byte_us + scan(n)
            }
            LocalKind::Ivf if index.in_ram => scan(lists) + scan(scanned),
            LocalKind::Ivf => {
                let bytes = p.beta_scan * (scanned * s.member_bytes + probes * s.overhead_bytes);
                probes * p.read_us + bytes * p.byte_us + scan(lists) + scan(scanned)
            }
            LocalKind::Graph => {
                let hop = p.read_us + PAGE as f64 * p.byte_us + scan(s.degree);
                self.hops(members) * hop
            }
        }
    }

    /// Bytes in RAM of a local index.
    pub fn ram_bytes(&self, index: LocalIndex, members: u64) -> u64 {
        let (member, overhead) = (self.sizes.member_bytes as u64, self.sizes.overhead_bytes as u64);
        let (lists, tables) = match index.kind {
            LocalKind::Ivf => (Self::lists_in(members), Self::lists_in(members) * (member + 20)),
            LocalKind::Flat | LocalKind::Graph => (1, 0),
        };
        tables + if index.in_ram { members * member + lists * overhead } else { 0 }
    }

    /// Costs and sizes of all local indexes of a cluster that is visited with relative frequency `weight`.
    pub fn items(&self, members: u64, weight: f64) -> [Item; LOCAL_INDEXES.len()] {
        LOCAL_INDEXES.map(|index| Item {
            cost: weight * self.visit_us(index, members),
            bytes: self.ram_bytes(index, members),
        })
    }
}

fn ceil(x: f64) -> f64 {
    let whole = x as u64 as f64;
    if x > whole { whole + 1.0 } else { whole }
}

/// The natural logarithm of a number from 1 up, without std and with the same bits on every machine: ln x = 2
/// atanh((m − 1) / (m + 1)) + e ln 2 with x = m 2^e.
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mantissa = f64::from_bits((bits & !(0x7ff << 52)) | 1023 << 52);
    let y = (mantissa - 1.0) / (mantissa + 1.0);
    let (square, mut power, mut sum) = (y * y, y, 0.0);
    for odd in (1..40).step_by(2) {
        sum += power / f64::from(odd);
        power *= square;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> VisitCostModel {
        VisitCostModel {
            unit_costs: UnitCosts {
                read_us: 12.0,
                byte_us: 0.000_7,
                distance_us: 0.004,
                alpha_flat: 6.0,
                beta_scan: 1.5,
                hops: (5.0, 2.0),
                lists: (2.0, -4.0),
            },
            sizes: ListSizes { member_bytes: 70.0, overhead_bytes: 288.0, read_max: 61_440.0, degree: 24.0 },
        }
    }

    #[test]
    fn logarithms() {
        let known = [
            (1.0, 0.0),
            (1.5, 0.405_465_108_108_164_4),
            (2.0, core::f64::consts::LN_2),
            (10.0, core::f64::consts::LN_10),
            (1e9, 9.0 * core::f64::consts::LN_10),
        ];
        for (x, expected) in known {
            assert!((ln(x) - expected).abs() < 1e-12, "{x}");
        }
        assert_eq!((ceil(2.0), ceil(2.1), ceil(0.0)), (2.0, 3.0, 0.0));
    }

    #[test]
    fn small_clusters_are_scanned_and_large_ones_divided() {
        let model = model();
        let best = |members: u64, in_ram: bool| {
            let ways = LOCAL_INDEXES.into_iter().filter(|w| w.in_ram == in_ram);
            ways.min_by(|&a, &b| model.visit_us(a, members).total_cmp(&model.visit_us(b, members)))
                .unwrap()
                .kind
        };
        assert_eq!(best(50, false), LocalKind::Flat);
        assert_eq!(best(1_000_000, false), LocalKind::Ivf);
        assert_eq!(best(50, true), LocalKind::Flat);
        for index in LOCAL_INDEXES {
            assert!(model.visit_us(index, 10_000) > 0.0);
            assert!(model.visit_us(index, 100_000) >= model.visit_us(index, 10_000));
        }
    }
}

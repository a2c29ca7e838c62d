//! What one visit of a cluster costs, by the local index it has: the model of OrchANN (§5.1), with codes in the place of vectors.
//!
//! A scan reads codes, not vectors, so the bytes of `T_flat` and `T_ivf` are those of heads; what survives is read whichever index found it, and is
//! left out on all sides. Where codes lie in RAM nothing is read but a graph's lists. The paper's `T_ivf` streams its lists as if they were one read; here each is a
//! read of its own, without which the smallest clusters would be divided.

use super::knapsack::Item;
use crate::PAGE;
use crate::format::directory::LocalKind;

/// What reads and distances cost on a machine whose disk is kept busy: what one keeps from the others, microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// A read, whatever its length.
    pub read_us: f64,
    /// A byte that is read.
    pub byte_us: f64,
    /// A distance to a full vector (C_vec).
    pub distance_us: f64,
    /// α_flat: the cost of a member in a scan, in distances.
    pub alpha_flat: f64,
    /// β_scan: bytes that are read of lists over bytes that are wanted.
    pub beta_scan: f64,
    /// a and b of a graph's hops: H(N) = max(1, a ln N + b).
    pub hops: (f64, f64),
    /// The same of the lists that are scanned of a divided cluster.
    pub lists: (f64, f64),
}

/// What members of a cluster take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Bytes of a member in a head.
    pub member_bytes: f64,
    /// Bytes of a head besides its members.
    pub head_bytes: f64,
    /// Bytes of one read at most.
    pub read_max: f64,
    /// Neighbours of a node of a graph.
    pub degree: f64,
}

/// One way to hold a cluster: its kind, and whether its codes lie in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its local index.
    pub kind: LocalKind,
    /// Whether its codes lie in RAM. A graph's always do.
    pub in_ram: bool,
}

/// Every way, in the order in which [`Model::items`] has them.
pub const WAYS: [Way; 5] = [
    Way { kind: LocalKind::Flat, in_ram: false },
    Way { kind: LocalKind::Ivf, in_ram: false },
    Way { kind: LocalKind::Flat, in_ram: true },
    Way { kind: LocalKind::Ivf, in_ram: true },
    Way { kind: LocalKind::Graph, in_ram: true },
];

/// Members of the smallest clusters that constants are fitted to.
pub const FITTED_MIN: u64 = 128;

/// The model of one index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Prices of the machine.
    pub prices: Prices,
    /// Sizes of the index.
    pub sizes: Sizes,
}

impl Model {
    /// Lists of a divided cluster: OrchANN §5.1, nlist = max(4, min(⌊√N⌋, nlist_max)).
    pub fn lists_in(members: u64) -> u64 {
        (stratann_kernel::sqrt(members as f32) as u64).clamp(4, 4096).min(members.max(1))
    }

    /// Lists that a visit scans at equal local recall.
    pub fn lists_scanned(&self, members: u64) -> f64 {
        let lists = Self::lists_in(members) as f64;
        // Of smaller clusters than were measured the same share is scanned.
        let least = Self::lists_in(FITTED_MIN) as f64;
        let share = self.fitted(self.prices.lists, members.max(FITTED_MIN)) / lists.max(least);
        (share * lists).clamp(1.0, lists)
    }

    /// Hops of a walk at equal local recall.
    pub fn hops(&self, members: u64) -> f64 {
        self.fitted(self.prices.hops, members.max(FITTED_MIN)).min(members.max(1) as f64)
    }

    fn fitted(&self, (a, b): (f64, f64), members: u64) -> f64 {
        (a * ln(members.max(1) as f64) + b).max(1.0)
    }

    /// What a visit costs, microseconds.
    pub fn visit_us(&self, way: Way, members: u64) -> f64 {
        let (p, s, n) = (&self.prices, &self.sizes, members as f64);
        let scan = |members: f64| p.alpha_flat * members * p.distance_us;
        let lists = Self::lists_in(members) as f64;
        // Where nothing was measured nothing speaks for dividing: all lists are taken to be scanned.
        let probes = if members < FITTED_MIN { lists } else { self.lists_scanned(members) };
        let scanned = n / lists * probes;
        match way.kind {
            LocalKind::Flat if way.in_ram => scan(n),
            LocalKind::Flat => {
                let bytes = n * s.member_bytes + s.head_bytes;
                ceil(bytes / s.read_max) * p.read_us + bytes * p.byte_us + scan(n)
            }
            LocalKind::Ivf if way.in_ram => scan(lists) + scan(scanned),
            LocalKind::Ivf => {
                let bytes = p.beta_scan * (scanned * s.member_bytes + probes * s.head_bytes);
                probes * p.read_us + bytes * p.byte_us + scan(lists) + scan(scanned)
            }
            LocalKind::Graph => {
                let hop = p.read_us + PAGE as f64 * p.byte_us + scan(s.degree);
                self.hops(members) * hop
            }
        }
    }

    /// What it takes in RAM, bytes.
    pub fn ram_bytes(&self, way: Way, members: u64) -> u64 {
        let (member, head) = (self.sizes.member_bytes as u64, self.sizes.head_bytes as u64);
        let (lists, tables) = match way.kind {
            LocalKind::Ivf => (Self::lists_in(members), Self::lists_in(members) * (member + 20)),
            LocalKind::Flat | LocalKind::Graph => (1, 0),
        };
        tables + if way.in_ram { members * member + lists * head } else { 0 }
    }

    /// All ways for a cluster that is visited `weight` times as often as another.
    pub fn items(&self, members: u64, weight: f64) -> [Item; WAYS.len()] {
        WAYS.map(|way| Item {
            cost: weight * self.visit_us(way, members),
            bytes: self.ram_bytes(way, members),
        })
    }
}

fn ceil(x: f64) -> f64 {
    let whole = x as u64 as f64;
    if x > whole { whole + 1.0 } else { whole }
}

/// The natural logarithm of a number from 1 up, without std: ln x = 2 atanh((m − 1) / (m + 1)) + e ln 2 with x = m 2^e.
fn ln(x: f64) -> f64 {
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

    fn model() -> Model {
        Model {
            prices: Prices {
                read_us: 12.0,
                byte_us: 0.000_7,
                distance_us: 0.004,
                alpha_flat: 6.0,
                beta_scan: 1.5,
                hops: (5.0, 2.0),
                lists: (2.0, -4.0),
            },
            sizes: Sizes { member_bytes: 70.0, head_bytes: 288.0, read_max: 61_440.0, degree: 24.0 },
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
            let ways = WAYS.into_iter().filter(|w| w.in_ram == in_ram);
            ways.min_by(|&a, &b| model.visit_us(a, members).total_cmp(&model.visit_us(b, members)))
                .unwrap()
                .kind
        };
        assert_eq!(best(50, false), LocalKind::Flat);
        assert_eq!(best(1_000_000, false), LocalKind::Ivf);
        assert_eq!(best(50, true), LocalKind::Flat);
        for way in WAYS {
            assert!(model.visit_us(way, 10_000) > 0.0);
            assert!(model.visit_us(way, 100_000) >= model.visit_us(way, 10_000));
        }
    }
}

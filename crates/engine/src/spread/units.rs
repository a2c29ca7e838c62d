//! Servers of units that lie in groups, such as the inverted lists of clusters.
//!
//! A group stays together. Near groups share a server, because a query visits them one after the other; servers get
//! about the same bytes. Further replicas go to the servers that are next nearest.

use std::cmp::Reverse;

use stratann_core::build::hash;
use stratann_core::place::Placement;
use stratann_kernel::distance::block_l2_f32;

use super::parts::BUFFER_BYTES;
use super::source::CHUNK_BYTES;
use super::{Method, OVERLAP_OF_LISTS, PartitionOptions};
use crate::budget::{Account, THREAD_BYTES};
use crate::clusterings::kmeans::kmeans;
use crate::clusterings::memory::{KmeansMemory, PRODUCT_BYTES};
use crate::kinds::UnitTables;
use crate::kinds::units::Units;
use crate::manifest::Manifest;
use crate::{Error, Progress, Result};

/// Rounds of k-means.
const ROUNDS: usize = 12;
/// Bytes of the fullest server, over the mean.
const FULLEST: f64 = 1.1;

/// The memory of a partition, from the manifest alone; `None` where the units are blocks of a graph.
pub(super) fn account(manifest: &Manifest, options: &PartitionOptions) -> Option<Account> {
    let facts = manifest.section.lists()?.facts;
    let (units, groups) = (u64::from(manifest.units()), u64::from(manifest.groups()));
    let (dim, servers) = (manifest.dim as u64, options.servers as u64);
    let mut account = manifest.planned_account(0);
    account.add("threads", options.threads as u64 * THREAD_BYTES);
    // The middle of each group, its bytes, its costs, its servers, its place in an order.
    let placed = groups * (4 * dim + 4 * servers + 24) + 4 * units;
    let kmeans = KmeansMemory { dim };
    let training = match options.method {
        Method::Random => 0,
        Method::Cells | Method::Kmeans => {
            groups * kmeans.row_bytes()
                + servers * kmeans.centroid_bytes()
                + options.threads as u64 * PRODUCT_BYTES
        }
    };
    // Pieces of a chunk are whole ranges but for the first and the last.
    let writing = 2 * facts.ranges_bytes() + CHUNK_BYTES as u64 + servers * 2 * BUFFER_BYTES as u64;
    account.add("placement", 2 * 8 * units);
    let (what, bytes) =
        if placed + training > writing { ("clusters", placed + training) } else { ("lists", writing) };
    account.add(what, bytes);
    Some(account)
}

/// Of the edges of the navigation graph between clusters, the share of those without a common server.
pub(super) fn cut_share(tables: &UnitTables, placement: &Placement) -> f64 {
    let (mut edges, mut cut) = (0u64, 0u64);
    tables.for_each_near_pair(|a, b| {
        edges += 1;
        cut += u64::from(placement.replicas(a) & placement.replicas(b) == 0);
    });
    cut as f64 / edges.max(1) as f64
}

/// Checks what cannot be placed.
///
/// # Errors
/// Numbers out of range, an overlap, fewer groups than servers.
pub(super) fn check(units: &Units, options: &PartitionOptions) -> Result<()> {
    options.check_numbers()?;
    if options.overlap > 0.0 {
        return Err(Error::bad_input(OVERLAP_OF_LISTS));
    }
    let (servers, groups) = (options.servers, units.bytes.len());
    if groups < servers {
        return Err(Error::bad_input(format!(
            "the index has {groups} clusters, fewer than {servers} servers; use fewer"
        )));
    }
    Ok(())
}

/// Places all units, which were checked.
///
/// # Errors
/// An interruption.
pub(super) fn place(units: &Units, options: &PartitionOptions, progress: &dyn Progress) -> Result<Placement> {
    let (servers, groups) = (options.servers, units.bytes.len());
    let costs = match options.method {
        Method::Random => by_hash(groups, servers, options.seed),
        Method::Cells | Method::Kmeans => by_distance(units, servers, options.seed, progress)?,
    };
    let of_group = fill(&units.bytes, &costs, servers, options.replicas);
    let of_unit = units.group_of.iter().map(|&group| of_group[group as usize]).collect();
    Placement::new(servers, of_unit)
        .ok_or_else(|| Error::bad_input("a list was left without a server; report this"))
}

/// For each group a cost of each server: the least is the best.
fn by_distance(units: &Units, servers: usize, seed: u64, progress: &dyn Progress) -> Result<Vec<f32>> {
    let centres = kmeans(&units.points, units.dim, servers, ROUNDS, seed, progress)?;
    let mut costs = vec![0f32; units.bytes.len() * servers];
    block_l2_f32(&units.points, &centres, units.dim, &mut costs);
    Ok(costs)
}

fn by_hash(groups: usize, servers: usize, seed: u64) -> Vec<f32> {
    (0..(groups * servers) as u64).map(|at| (hash(seed, 61, at) >> 40) as f32).collect()
}

/// Gives each group to its best server with room, the largest groups first; then all their second replicas, and so on.
fn fill(bytes: &[u64], costs: &[f32], servers: usize, replicas: usize) -> Vec<u64> {
    let total: u64 = bytes.iter().sum();
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|&group| (Reverse(bytes[group]), group));
    let (mut held, mut of_group) = (vec![0u64; servers], vec![0u64; bytes.len()]);
    for replica in 1..=replicas {
        let room = (total as f64 * replica as f64 / servers as f64 * FULLEST) as u64;
        for &group in &order {
            let free = (0..servers).filter(|&s| of_group[group] >> s & 1 == 0);
            let key = |s: usize| {
                // Where none has room, the emptiest.
                let is_full = held[s] + bytes[group] > room;
                (is_full, if is_full { held[s] } else { 0 }, costs[group * servers + s])
            };
            let best = free.min_by(|&a, &b| {
                let (a, b) = (key(a), key(b));
                (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2))
            });
            if let Some(server) = best {
                of_group[group] |= 1 << server;
                held[server] += bytes[group];
            }
        }
    }
    of_group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    fn units(groups: usize) -> Units {
        let point = |g: usize| [(g % 6 * 100 + g / 6) as f32, (g % 3 * 50) as f32];
        Units {
            group_of: (0..groups as u32).flat_map(|g| vec![g; 1 + g as usize % 3]).collect(),
            bytes: (0..groups as u64).map(|g| 1000 + hash(1, 2, g) % 4000).collect(),
            dim: 2,
            points: (0..groups).flat_map(point).collect(),
        }
    }

    #[test]
    fn groups_stay_together_and_servers_get_their_share() {
        let units = units(120);
        for (servers, replicas, method) in
            [(1, 1, Method::Cells), (3, 1, Method::Random), (4, 2, Method::Kmeans), (6, 6, Method::Cells)]
        {
            let options = PartitionOptions { replicas, method, ..PartitionOptions::new(servers) };
            let placement = place(&units, &options, &Quiet).unwrap();
            let mut held = vec![0u64; servers];
            let mut of_group = vec![None; 120];
            for (unit, &group) in (0..).zip(&units.group_of) {
                let on = placement.replicas(unit);
                assert_eq!(on.count_ones() as usize, replicas);
                assert_eq!(*of_group[group as usize].get_or_insert(on), on);
            }
            for (on, bytes) in of_group.iter().flatten().zip(&units.bytes) {
                (0..servers).filter(|s| on >> s & 1 == 1).for_each(|s| held[s] += bytes);
            }
            let mean = units.bytes.iter().sum::<u64>() as f64 * replicas as f64 / servers as f64;
            assert!(held.iter().all(|&h| (h as f64) < 1.15 * mean), "{held:?}");
        }
    }

    #[test]
    fn near_groups_share_a_server() {
        let units = units(120);
        let together = |method| {
            let options = PartitionOptions { method, ..PartitionOptions::new(3) };
            let placement = place(&units, &options, &Quiet).unwrap();
            let of: Vec<u64> = (0..120)
                .map(|g| placement.replicas(units.group_of.iter().position(|&o| o == g).unwrap() as u32))
                .collect();
            (6..120).filter(|&g| of[g] == of[g - 6]).count()
        };
        let (near, random) = (together(Method::Cells), together(Method::Random));
        assert!(2 * near > 3 * random, "{near} {random}");
    }

    #[test]
    fn fewer_groups_than_servers_are_refused() {
        assert!(check(&units(4), &PartitionOptions::new(4)).is_ok());
        assert!(check(&units(3), &PartitionOptions::new(4)).is_err());
    }
}

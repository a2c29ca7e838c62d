//! Servers of units that lie in groups, such as the inverted lists of clusters.
//!
//! A group stays together. Near groups share a server, because a query visits them one after the other; servers get
//! about the same bytes and, where it is known what queries visit, about the same visits. First replicas come from a
//! cut through the graph of near groups, or from k-means; further ones go to the servers with most of a group's
//! neighbours, or to the next nearest.

use stratann_core::build::hash;
use stratann_core::place::Placement;
use stratann_kernel::distance::block_l2_f32;
use stratann_storage::budget::{Account, THREAD_BYTES};
use stratann_storage::{Error, Progress, Result};

use super::cells::{self, Pair};
use super::divide::Shares;
use super::parts::BUFFER_BYTES;
use super::source::CHUNK_BYTES;
use super::{Method, OVERLAP_OF_LISTS, PartitionOptions};
use crate::clusterings::kmeans::kmeans;
use crate::clusterings::memory::{KmeansMemory, PRODUCT_BYTES};
use crate::kinds::UnitTables;
use crate::manifest::Manifest;
use crate::parallel;
use crate::units::Units;

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
        Method::Cells if cells::can_cut(groups as usize) => {
            // Near groups, their pairs while these are joined, and the graph that is cut.
            let near = groups * NEAR as u64 * 8;
            near + options.threads as u64 * TILE as u64 * 8 * groups + 2 * near + 2 * near * 8 + groups * 64
        }
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

/// Share of the edges of the navigation graph between clusters without a common server.
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
        Method::Cells if cells::can_cut(groups) => by_cut(units, servers, options.seed, progress)?,
        Method::Cells | Method::Kmeans => by_distance(units, servers, options.seed, progress)?,
    };
    let of_group = fill([&units.bytes, &loads(units)], &costs, servers, options.replicas);
    let of_unit = units.group_of.iter().map(|&group| of_group[group as usize]).collect();
    Placement::new(servers, of_unit)
        .ok_or_else(|| Error::bad_input("a list was left without a server; report this"))
}

/// A visit counts so much more than what every group has for the queries to come.
const VISIT_WEIGHT: u64 = 8;

/// The expected visits of each group, in proportion; none where they are not known.
fn loads(units: &Units) -> Vec<u64> {
    if units.visits.len() != units.bytes.len() {
        return vec![0; units.bytes.len()];
    }
    let total: u64 = units.visits.iter().map(|&visits| u64::from(visits)).sum();
    let mean = (total / units.visits.len().max(1) as u64).max(1);
    units.visits.iter().map(|&visits| VISIT_WEIGHT * u64::from(visits) + mean).collect()
}

/// The expected visits of the busiest server over the mean, replicas sharing those of a group; `None` where visits are
/// not known.
pub(super) fn busiest_over_mean(units: &Units, placement: &Placement) -> Option<f64> {
    if units.visits.is_empty() {
        return None;
    }
    let mut of_group = vec![0u64; units.visits.len()];
    (0u32..).zip(&units.group_of).for_each(|(unit, &g)| of_group[g as usize] = placement.replicas(unit));
    let mut busy = vec![0f64; placement.servers()];
    for (on, &visits) in of_group.iter().zip(&units.visits) {
        let share = f64::from(visits) / f64::from(on.count_ones().max(1));
        (0..busy.len()).filter(|server| on >> server & 1 == 1).for_each(|server| busy[server] += share);
    }
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    (mean > 0.0).then(|| busy.iter().copied().fold(0.0, f64::max) / mean)
}

/// Cost of each server for each group: the least is the best.
fn by_distance(units: &Units, servers: usize, seed: u64, progress: &dyn Progress) -> Result<Vec<f32>> {
    let centres = kmeans(&units.points, units.dim, servers, ROUNDS, seed, progress)?;
    let mut costs = vec![0f32; units.bytes.len() * servers];
    block_l2_f32(&units.points, &centres, units.dim, &mut costs);
    Ok(costs)
}

/// Costs from a cut through the graph of near groups: the server of a group, then those of most of its neighbours.
fn by_cut(units: &Units, servers: usize, seed: u64, progress: &dyn Progress) -> Result<Vec<f32>> {
    let near = near_groups(units, progress)?;
    let mut pairs: Vec<Pair> = Vec::with_capacity(near.len());
    for (group, others) in near.chunks(neighbours(units)).enumerate() {
        let pair =
            |&(other, weight): &(u16, u32)| ((other.min(group as u16), other.max(group as u16)), weight);
        pairs.extend(others.iter().map(pair));
    }
    pairs.sort_unstable();
    cells::add_up(&mut pairs);
    let weight = |bytes: u64| (bytes / 64).clamp(1, 1 << 31) as u32;
    let bytes = units.bytes.iter().map(|&bytes| weight(bytes));
    let part = if units.visits.is_empty() {
        cells::cut(&pairs, (&bytes.collect::<Vec<u32>>(), 1), &Shares::new(&[], servers), seed)?
    } else {
        let loads = loads(units).into_iter().map(|load| load.min(1 << 31) as u32);
        let both: Vec<u32> = bytes.zip(loads).flat_map(|(bytes, load)| [bytes, load]).collect();
        cells::cut(&pairs, (&both, 2), &Shares::new(&[], servers), seed)?
    };
    let mut costs = vec![0f32; units.bytes.len() * servers];
    for ((a, b), weight) in pairs {
        for (group, other) in [(a, b), (b, a)] {
            costs[usize::from(group) * servers + usize::from(part[usize::from(other)])] -= weight as f32;
        }
    }
    for (costs, own) in costs.chunks_exact_mut(servers).zip(part) {
        costs[usize::from(own)] = f32::MIN;
    }
    Ok(costs)
}

/// Near groups of each group.
const NEAR: usize = 16;
/// Groups whose distances to all are in memory at a time.
const TILE: usize = 64;

fn neighbours(units: &Units) -> usize {
    NEAR.min(units.bytes.len() - 1).max(1)
}

/// Nearest other groups of each group, with weights: a query that visits a group is likely to visit these, the nearest
/// most likely.
fn near_groups(units: &Units, progress: &dyn Progress) -> Result<Vec<(u16, u32)>> {
    let (groups, count) = (units.bytes.len(), neighbours(units));
    let mut near = vec![(0u16, 0u32); groups * count];
    progress.stage("near clusters", groups as u64, "clusters");
    let tiles = units.points.chunks(TILE * units.dim).zip(near.chunks_mut(TILE * count)).enumerate();
    parallel::try_map(tiles, |(tile, (points, near))| {
        progress.check_interrupted()?;
        let rows = points.len() / units.dim;
        let mut distances = vec![0f32; rows * groups];
        block_l2_f32(points, &units.points, units.dim, &mut distances);
        let mut order: Vec<u32> = Vec::with_capacity(groups);
        for (row, (distances, near)) in distances.chunks_exact(groups).zip(near.chunks_mut(count)).enumerate()
        {
            order.clear();
            order.extend((0..groups as u32).filter(|&group| group as usize != tile * TILE + row));
            let key =
                |&a: &u32, &b: &u32| distances[a as usize].total_cmp(&distances[b as usize]).then(a.cmp(&b));
            if order.len() > count {
                order.select_nth_unstable_by(count - 1, key);
                order.truncate(count);
            }
            order.sort_unstable_by(key);
            for (rank, (near, &other)) in near.iter_mut().zip(&order).enumerate() {
                *near = (other as u16, (count - rank) as u32);
            }
        }
        progress.advance(rows as u64);
        Ok::<_, Error>(())
    })?;
    Ok(near)
}

fn by_hash(groups: usize, servers: usize, seed: u64) -> Vec<f32> {
    (0..(groups * servers) as u64).map(|at| (hash(seed, 61, at) >> 40) as f32).collect()
}

/// Gives each group to its best server with room, those first that lose most by another; then all their second
/// replicas, and so on.
fn fill(sizes: [&[u64]; 2], costs: &[f32], servers: usize, replicas: usize) -> Vec<u64> {
    let totals = sizes.map(|of| of.iter().sum::<u64>() as f64);
    let bytes = sizes[0];
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    let (mut held, mut of_group) = (vec![[0u64; 2]; servers], vec![0u64; bytes.len()]);
    for replica in 1..=replicas {
        let regrets: Vec<f32> = (0..bytes.len())
            .map(|group| regret(&costs[group * servers..(group + 1) * servers], of_group[group]))
            .collect();
        order.sort_by(|&a, &b| {
            regrets[b].total_cmp(&regrets[a]).then(bytes[b].cmp(&bytes[a])).then(a.cmp(&b))
        });
        let rooms = totals.map(|total| total * replica as f64 / servers as f64 * FULLEST);
        // How full a server is with these sizes more.
        let fullness = |held: [u64; 2], more: [u64; 2]| {
            let of = |kind: usize| (held[kind] + more[kind]) as f64 / rooms[kind].max(1.0);
            of(0).max(of(1))
        };
        for &group in &order {
            let free = (0..servers).filter(|&s| of_group[group] >> s & 1 == 0);
            let own = sizes.map(|of| of[group]);
            let key = |s: usize| {
                // Where none has room, the emptiest.
                let is_full = fullness(held[s], own) > 1.0;
                (is_full, if is_full { fullness(held[s], [0; 2]) } else { 0.0 }, costs[group * servers + s])
            };
            let best = free.min_by(|&a, &b| {
                let (a, b) = (key(a), key(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2))
            });
            if let Some(server) = best {
                of_group[group] |= 1 << server;
                (0..2).for_each(|kind| held[server][kind] += own[kind]);
            }
        }
    }
    of_group
}

/// Difference between the costs of the second best and the best of the servers that are left.
fn regret(costs: &[f32], taken: u64) -> f32 {
    let (mut best, mut second) = (f32::INFINITY, f32::INFINITY);
    for (_, &cost) in costs.iter().enumerate().filter(|(server, _)| taken >> server & 1 == 0) {
        if cost < best {
            (best, second) = (cost, best);
        } else {
            second = second.min(cost);
        }
    }
    if second == f32::INFINITY { 0.0 } else { second - best }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_storage::Quiet;

    fn units(groups: usize) -> Units {
        let point = |g: usize| [(g % 6 * 100 + g / 6) as f32, (g % 3 * 50) as f32];
        Units {
            group_of: (0..groups as u32).flat_map(|g| vec![g; 1 + g as usize % 3]).collect(),
            bytes: (0..groups as u64).map(|g| 1000 + hash(1, 2, g) % 4000).collect(),
            dim: 2,
            points: (0..groups).flat_map(point).collect(),
            visits: Vec::new(),
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
    #[cfg(feature = "metis")]
    fn a_cut_separates_fewer_near_groups_than_centres_do() {
        // A long band of groups, three wide, of very different sizes along it.
        let units = Units {
            group_of: (0..240).collect(),
            bytes: (0..240).map(|g| if g < 80 { 9000 } else { 1000 + hash(1, 2, g) % 500 }).collect(),
            dim: 2,
            points: (0..240).flat_map(|g| [(g / 3) as f32, (g % 3) as f32]).collect(),
            visits: Vec::new(),
        };
        let near = near_groups(&units, &Quiet).unwrap();
        let cut = |method| {
            let options = PartitionOptions { method, ..PartitionOptions::new(5) };
            let of = place(&units, &options, &Quiet).unwrap();
            let is_cut = |(i, near): (usize, &(u16, u32))| {
                of.replicas((i / NEAR) as u32) & of.replicas(near.0.into()) == 0
            };
            near.iter().enumerate().filter(|&pair| is_cut(pair)).count()
        };
        let (cells, kmeans) = (cut(Method::Cells), cut(Method::Kmeans));
        assert!(3 * cells < 2 * kmeans, "{cells} {kmeans}");
    }

    #[test]
    fn busy_groups_are_dealt_over_the_servers() {
        // Three rows of near groups, of which one has nearly all visits.
        let mut units = units(120);
        units.visits = (0..120).map(|g| if g % 3 == 0 { 100 + g } else { 1 }).collect();
        for (servers, replicas, method) in
            [(3, 1, Method::Cells), (4, 2, Method::Kmeans), (5, 1, Method::Cells)]
        {
            let options = PartitionOptions { replicas, method, ..PartitionOptions::new(servers) };
            let busiest = |units: &Units, placed: &Units| {
                busiest_over_mean(units, &place(placed, &options, &Quiet).unwrap()).unwrap()
            };
            let blind = Units { visits: Vec::new(), ..self::units(120) };
            let (with, without) = (busiest(&units, &units), busiest(&units, &blind));
            // METIS cuts differently on different machines.
            assert!(with < 1.2 && with < 0.9 * without, "{servers}, {method:?}: {with} {without}");
        }
        assert_eq!(busiest_over_mean(&self::units(5), &Placement::new(1, vec![1; 9]).unwrap()), None);
    }

    #[test]
    fn those_that_lose_most_choose_first() {
        // Both prefer server 0, which has room for one; the smaller loses more elsewhere.
        let costs = [0.0, 1.0, 0.0, 50.0];
        let sizes: [&[u64]; 2] = [&[1000, 990], &[1, 1]];
        assert_eq!(fill(sizes, &costs, 2, 1), [0b10, 0b01]);
        assert_eq!(fill(sizes, &costs, 2, 2), [0b11, 0b11]);
        assert_eq!(
            (regret(&costs[2..], 0), regret(&costs[2..], 1), regret(&costs[2..], 0b11)),
            (50.0, 0.0, 0.0)
        );
    }

    #[test]
    fn fewer_groups_than_servers_are_refused() {
        assert!(check(&units(4), &PartitionOptions::new(4)).is_ok());
        assert!(check(&units(3), &PartitionOptions::new(4)).is_err());
    }
}

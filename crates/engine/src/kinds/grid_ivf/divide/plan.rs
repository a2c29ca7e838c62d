//! The planner (HARMONY §4.2): what a plan costs is what its queries cost, in computation and messages, and α times the
//! imbalance of the servers' loads.

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::GridLayout;
use stratann_core::place::Placement;

use super::workload::Workload;
use super::{Mode, Over};
use crate::profile::network;
use crate::{Error, Result};

/// Bytes of a message besides what it is about: headers, parameters, counters.
const FRAME_BYTES: f64 = 150.0;
/// Bytes of a result in a reply.
const HIT_BYTES: f64 = 8.0;
/// Bytes of a row of lists over the mean, before another row is taken.
const FULLEST: f64 = 1.1;
/// Components of the widest slice over the mean, where a server has one slice alone.
const WIDEST: f64 = 1.25;

/// One way to divide a grid, and what the sample of queries would cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Rows of lists. Where there are more cells than servers, a server has different slices of different rows.
    pub rows: usize,
    /// Slices of components.
    pub slices: usize,
    /// Milliseconds that all servers compute.
    pub computing_ms: f64,
    /// Milliseconds of messages.
    pub messages_ms: f64,
    /// Messages of a query.
    pub messages_per_query: f64,
    /// Bytes of a query's messages.
    pub bytes_per_query: f64,
    /// The standard deviation of the servers' loads, milliseconds: I in the paper.
    pub imbalance_ms: f64,
    /// The largest load over the mean.
    pub largest_share: f64,
    /// The sum of computing and messages, and α times the imbalance.
    pub cost_ms: f64,
}

/// How a grid is divided, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridPlan {
    /// What was asked for.
    pub mode: Mode,
    /// The first group of components of each slice, and the number of groups.
    pub slices: Vec<u32>,
    /// The row of each list. Not in the manifest: the placement tells it.
    #[serde(skip)]
    pub row_of_list: Vec<u32>,
    /// Number of rows.
    pub rows: usize,
    /// Weight of the imbalance.
    pub alpha: f64,
    /// Lists that the queries of the sample visit.
    pub nprobe: u32,
    /// Queries of the sample.
    pub queries: usize,
    /// Nanoseconds of a component, of preparing a query at its origin, of a message, and of a byte of it.
    pub component_ns: f64,
    /// See `component_ns`.
    pub prepare_ns: f64,
    /// See `component_ns`.
    pub message_ns: f64,
    /// See `component_ns`.
    pub byte_ns: f64,
    /// What was compared, the cheapest first.
    pub candidates: Vec<Candidate>,
}

/// Prices of messages.
#[derive(Clone, Copy, Debug)]
struct Prices {
    message_ns: f64,
    byte_ns: f64,
}

/// A way to divide, with what placing it needs.
struct Division {
    servers: usize,
    slices: Vec<u32>,
    rows: usize,
    row_of_list: Vec<u32>,
}

impl GridPlan {
    /// The cheapest plan of the mode.
    ///
    /// # Errors
    /// More servers than the mode can use.
    pub(super) fn choose(workload: &Workload, layout: &GridLayout, over: Over<'_>) -> Result<GridPlan> {
        let (servers, mode) = (over.servers, over.grid.mode);
        let alpha = over.grid.alpha.unwrap_or(servers as f64);
        let own = over.grid;
        let measured = match (own.message_ns, own.byte_ns) {
            (Some(message_ns), Some(byte_ns)) => Prices { message_ns, byte_ns },
            _ => {
                let (message_ns, byte_ns) = network::loopback_prices()?;
                Prices {
                    message_ns: own.message_ns.unwrap_or(message_ns),
                    byte_ns: own.byte_ns.unwrap_or(byte_ns),
                }
            }
        };
        let mut all: Vec<(Candidate, Division)> = Vec::new();
        for slices in (1..=servers).filter(|slices| servers.is_multiple_of(*slices)) {
            let is_asked = match mode {
                Mode::Harmony => true,
                Mode::Vector => slices == 1,
                Mode::Dimension => slices == servers,
            };
            let can_be = slices <= layout.groups() && servers / slices <= workload.members.len();
            if is_asked && can_be {
                let mut add = |rows: usize| {
                    let division = Division::new(workload, layout, servers, (rows, slices));
                    all.push((division.cost(workload, layout, measured, alpha), division));
                };
                add(servers / slices);
                // Each server has all slices, of different rows: their work and their bytes need not be equal.
                if slices > 1 && servers <= workload.members.len() {
                    add(servers);
                }
            }
        }
        all.sort_by(|a, b| a.0.cost_ms.total_cmp(&b.0.cost_ms));
        let (candidates, divisions): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let Some(best) = divisions.into_iter().next() else {
            return Err(Error::bad_input(format!(
                "{} lists of {} groups of components cannot be divided over {servers} servers in the mode {}; use \
                 fewer servers or another mode",
                workload.members.len(),
                layout.groups(),
                mode.name()
            )));
        };
        Ok(GridPlan {
            mode,
            slices: best.slices,
            row_of_list: best.row_of_list,
            rows: best.rows,
            alpha,
            nprobe: workload.nprobe,
            queries: workload.queries,
            component_ns: workload.component_ns,
            prepare_ns: workload.prepare_ns,
            message_ns: measured.message_ns,
            byte_ns: measured.byte_ns,
            candidates,
        })
    }

    /// Servers of all units. Further replicas of a slice are on servers of the same slice of other rows, where there
    /// are enough rows.
    ///
    /// # Errors
    /// None that a plan for these servers can have.
    pub(super) fn placement(&self, over: Over<'_>) -> Result<Placement> {
        let (servers, replicas) = (over.servers, over.replicas);
        let slices = self.slices.len() - 1;
        let step = if servers / slices >= replicas { slices } else { 1 };
        let on = |row: u32, slice: usize| -> u64 {
            let home = server_of(servers, slices, (row as usize, slice));
            (0..replicas)
                .map(|replica| 1 << ((home + replica * step) % servers))
                .fold(0, |all, bit| all | bit)
        };
        let mut units = Vec::with_capacity(self.row_of_list.len() * (slices + 1));
        for &row in &self.row_of_list {
            units.push((0..slices).map(|slice| on(row, slice)).fold(0, |all, on| all | on));
            units.extend((0..slices).map(|slice| on(row, slice)));
        }
        Placement::new(servers, units)
            .ok_or_else(|| Error::bad_input("a slice was left without a server; report this"))
    }
}

/// The first server of a cell. Rows beyond the first `servers / slices` begin with the next server of their group.
fn server_of(servers: usize, slices: usize, (row, slice): (usize, usize)) -> usize {
    let groups = servers / slices;
    (row % groups) * slices + (slice + row / groups) % slices
}

impl Division {
    fn new(
        workload: &Workload,
        layout: &GridLayout,
        servers: usize,
        (rows, slices): (usize, usize),
    ) -> Division {
        let row_of_list = rows_of(workload, rows);
        let is_turned = rows * slices > servers;
        let widest = if is_turned { 1.0 } else { WIDEST / slices as f64 };
        let slices = slice_edges(workload, layout, slices, widest * layout.dim() as f64);
        Division { servers, slices, rows, row_of_list }
    }

    /// What a slice costs for each member of a visited list, in components.
    fn slice_components(&self, workload: &Workload, layout: &GridLayout, slice: usize) -> f64 {
        let groups = self.slices[slice] as usize..self.slices[slice + 1] as usize;
        let own: f64 = groups.map(|g| workload.alive[g] * layout.components(g).len() as f64).sum();
        own + if slice == 0 { workload.pilot } else { 0.0 }
    }

    fn cost(&self, workload: &Workload, layout: &GridLayout, prices: Prices, alpha: f64) -> Candidate {
        let slices = self.slices.len() - 1;
        let servers = self.servers;
        let per_member: Vec<f64> =
            (0..slices).map(|s| workload.component_ns * self.slice_components(workload, layout, s)).collect();
        // The origin alone turns a query, and any server may be the origin.
        let prepare_ns = workload.prepare_ns * workload.queries as f64 / servers as f64;
        let (mut load, mut messages, mut bytes) = (vec![prepare_ns; servers], 0.0, 0.0);
        // Each server gets what it and those after it need of the query.
        let query_bytes = |slice: usize| {
            let first = layout.edges[self.slices[slice] as usize] as usize;
            ((layout.dim() - first) * layout.dtype.size()) as f64
        };
        for lists in workload.each() {
            let mut members = vec![0f64; self.rows];
            for &list in lists {
                members[self.row_of_list[list as usize] as usize] +=
                    f64::from(workload.members[list as usize]);
            }
            for (row, &members) in members.iter().enumerate().filter(|row| *row.1 > 0.0) {
                for slice in 0..slices {
                    load[server_of(servers, slices, (row, slice))] += members * per_member[slice];
                }
                // The origin is one of the servers, as likely as any other: what it holds needs no message.
                let elsewhere = 1.0 - 1.0 / servers as f64;
                messages += elsewhere * (slices as f64 + 1.0);
                for slice in 0..slices {
                    let left = members * workload.alive[self.slices[slice] as usize].min(1.0);
                    let sums =
                        if slice == 0 { members / 8.0 } else { (members / 8.0).min(left) + 4.0 * left };
                    bytes += elsewhere * (FRAME_BYTES + query_bytes(slice) + sums);
                }
                bytes += elsewhere * (FRAME_BYTES + f64::from(workload.k) * HIT_BYTES);
            }
        }
        let computing: f64 = load.iter().sum();
        let messages_ns = messages * prices.message_ns + bytes * prices.byte_ns;
        let mean = computing / servers as f64;
        let imbalance = (load.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / servers as f64).sqrt();
        let queries = workload.queries.max(1) as f64;
        Candidate {
            rows: self.rows,
            slices,
            computing_ms: computing / 1e6,
            messages_ms: messages_ns / 1e6,
            messages_per_query: messages / queries,
            bytes_per_query: bytes / queries,
            imbalance_ms: imbalance / 1e6,
            largest_share: load.iter().copied().fold(0.0, f64::max) / mean.max(f64::MIN_POSITIVE),
            cost_ms: (computing + messages_ns + alpha * imbalance) / 1e6,
        }
    }
}

/// Edges of slices whose largest work is least, none of them of more than `widest` components as far as groups allow.
fn slice_edges(workload: &Workload, layout: &GridLayout, slices: usize, widest: f64) -> Vec<u32> {
    let groups = layout.groups();
    let width = |from: usize, to: usize| (layout.edges[to] - layout.edges[from]) as f64;
    let work = |from: usize, to: usize| {
        let own: f64 = (from..to).map(|g| workload.alive[g] * width(g, g + 1)).sum();
        own + if from == 0 { workload.pilot } else { 0.0 }
    };
    // A slice that is too wide costs more than all work that there is.
    let too_wide = |from, to| (width(from, to) - widest).max(0.0) * (1.0 + workload.pilot + width(0, groups));
    // For each number of slices and of groups in them the least of their largest costs, and where the last one begins.
    let mut best = vec![vec![(f64::INFINITY, 0usize); groups + 1]; slices + 1];
    best[0][0] = (0.0, 0);
    for slice in 1..=slices {
        for to in slice..=groups {
            for from in slice - 1..to {
                let cost = best[slice - 1][from].0.max(work(from, to) + too_wide(from, to));
                if cost < best[slice][to].0 {
                    best[slice][to] = (cost, from);
                }
            }
        }
    }
    let mut edges = vec![groups as u32];
    let mut at = groups;
    for slice in (1..=slices).rev() {
        at = best[slice][at].1;
        edges.push(at as u32);
    }
    edges.reverse();
    edges
}

/// Deals the lists over rows, those with most work first, each to the row with the least work and bytes.
fn rows_of(workload: &Workload, rows: usize) -> Vec<u32> {
    let visits = workload.visits();
    let lists = workload.members.len();
    // What was not visited may be.
    let load: Vec<f64> =
        visits.iter().zip(&workload.members).map(|(&v, &m)| (f64::from(v) + 0.5) * f64::from(m)).collect();
    let totals = [load.iter().sum::<f64>(), workload.members.iter().map(|&m| f64::from(m)).sum()];
    let mut order: Vec<usize> = (0..lists).collect();
    order.sort_by(|&a, &b| load[b].total_cmp(&load[a]).then(a.cmp(&b)));
    let (mut held, mut row_of) = (vec![[0f64; 2]; rows], vec![0u32; lists]);
    for list in order {
        let own = [load[list], f64::from(workload.members[list])];
        let key = |row: usize| {
            let share = |kind: usize| {
                (held[row][kind] + own[kind]) * rows as f64 / totals[kind].max(f64::MIN_POSITIVE)
            };
            (share(1) > FULLEST, share(0))
        };
        let best = (0..rows).min_by(|&a, &b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        let row = best.unwrap_or(0);
        row_of[list] = row as u32;
        (0..2).for_each(|kind| held[row][kind] += own[kind]);
    }
    row_of
}

#[cfg(test)]
mod tests;

//! The planner (HARMONY §4.2): what a plan costs is what its queries cost, in computation and messages, and α times the
//! imbalance of the servers' loads.

use serde::{Deserialize, Serialize};
use stratann_core::format::grid::GridLayout;
use stratann_core::place::Placement;
use stratann_storage::profile::network;
use stratann_storage::{Error, Result};

use super::super::stripes::sizes_of;
use super::workload::Workload;
use super::{GridPartition, Mode, Over};
use crate::manifest::MessagePrices;

/// Bytes of a message besides what it is about: headers, parameters, counters.
const FRAME_BYTES: f64 = 150.0;
/// Bytes of a result in a reply.
const HIT_BYTES: f64 = 8.0;
/// Bytes of a row of lists over the mean, before another row is taken.
const FULLEST: f64 = 1.1;
/// Share that striped lists must save to be taken where other plans are possible: they are written again, and cannot be
/// planned again.
const STRIPES_SAVE: f64 = 0.05;
/// Places of striped lists over their members, at most.
const PADDED: f64 = 1.03;
/// Components of the widest slice over the mean, where a server has one slice alone.
const WIDEST: f64 = 1.25;

/// One way to divide a grid, and what the sample of queries would cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Rows of lists. Where there are more cells than servers, a server has different slices of different rows.
    pub rows: usize,
    /// Slices of components.
    pub slices: usize,
    /// Lists that the members of each list are dealt over.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stripes: u32,
    /// Milliseconds that all servers compute.
    pub computing_ms: f64,
    /// Milliseconds of messages.
    pub messages_ms: f64,
    /// Messages of a query.
    pub messages_per_query: f64,
    /// Bytes of a query's messages.
    pub bytes_per_query: f64,
    /// What the busiest server computes and exchanges over the mean, milliseconds. The standard deviation, which is I
    /// in the paper, hardly grows where one server of many is hot, and that one limits all.
    pub imbalance_ms: f64,
    /// The largest load over the mean.
    pub largest_share: f64,
    /// The sum of computing and messages, and α times the imbalance.
    pub cost_ms: f64,
}

/// Division of a grid, and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GridPlan {
    /// Mode that was asked for.
    pub mode: Mode,
    /// The first group of components of each slice, and the number of groups.
    pub slices: Vec<u32>,
    /// The row of each list. Not in the manifest: the placement tells it.
    #[serde(skip)]
    pub row_of_list: Vec<u32>,
    /// A bit for each server of each slice of each row. Not in the manifest either.
    #[serde(skip)]
    pub cells: Vec<Vec<u64>>,
    /// Lists that the members of each list are dealt over.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stripes: u32,
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
    /// Compared plans: the one that was taken, then the others, the cheapest first.
    pub candidates: Vec<Candidate>,
}

fn one() -> u32 {
    1
}

fn is_one(stripes: &u32) -> bool {
    *stripes == 1
}

/// Prices of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    message_ns: f64,
    byte_ns: f64,
    step_ns: f64,
}

impl Prices {
    /// Prices that are given, others as measured on the loopback interface.
    pub(super) fn of(own: &GridPartition) -> Result<Prices> {
        let (message_ns, byte_ns) = match (own.message_ns, own.byte_ns) {
            (Some(message_ns), Some(byte_ns)) => (message_ns, byte_ns),
            (message_ns, byte_ns) => {
                let measured = network::loopback_prices()?;
                (message_ns.unwrap_or(measured.0), byte_ns.unwrap_or(measured.1))
            }
        };
        Ok(Prices { message_ns, byte_ns, step_ns: own.step_ns.unwrap_or(message_ns / 2.0) })
    }

    pub(super) fn of_messages(&self) -> MessagePrices {
        MessagePrices { message_ns: self.message_ns, byte_ns: self.byte_ns }
    }
}

/// A way to divide, with what placing it needs.
#[derive(Clone, Debug)]
pub(super) struct Division {
    pub(super) servers: usize,
    pub(super) slices: Vec<u32>,
    pub(super) rows: usize,
    pub(super) row_of_list: Vec<u32>,
    /// A bit for each server of each slice of each row.
    pub(super) cells: Vec<Vec<u64>>,
    pub(super) stripes: u32,
}

/// Lists of a row that a query visits at a time.
#[derive(Clone, Copy, Debug)]
struct Job {
    row: usize,
    /// Members of its lists.
    members: f64,
    /// Members, weighed by what they take.
    work: f64,
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
        let measured = Prices::of(own)?;
        let mut all: Vec<(Candidate, Division)> = Vec::new();
        if over.may_stripe && own.slices.is_none() && has_room_for_stripes(workload, servers, mode) {
            let striped = workload.striped(servers as u32);
            let division = Division::striped(layout, over, striped.members.len());
            all.push((division.cost(&striped, layout, measured, alpha), division));
        }
        for slices in (1..=servers).filter(|slices| servers.is_multiple_of(*slices)) {
            let is_asked = match mode {
                Mode::Harmony => true,
                Mode::Vector => slices == 1,
                Mode::Dimension => slices == servers,
                // One server has all of every list.
                Mode::Striped => servers == 1,
            };
            let is_asked = is_asked && own.slices.is_none_or(|asked| asked == slices);
            let can_be = slices <= layout.groups() && servers / slices <= workload.members.len();
            if is_asked && can_be {
                let mut add = |rows: usize| {
                    let division = Division::new(workload, layout, over, (rows, slices));
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
        if let [(first, _), (second, _), ..] = &all[..]
            && first.stripes > 1
            && first.cost_ms > (1.0 - STRIPES_SAVE) * second.cost_ms
        {
            all.swap(0, 1);
        }
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
        Ok(GridPlan::of(best, (mode, alpha), workload, measured, candidates))
    }

    /// The plan of a division.
    pub(super) fn of(
        division: Division,
        (mode, alpha): (Mode, f64),
        workload: &Workload,
        prices: Prices,
        candidates: Vec<Candidate>,
    ) -> GridPlan {
        GridPlan {
            mode,
            slices: division.slices,
            row_of_list: division.row_of_list,
            cells: division.cells,
            stripes: division.stripes,
            rows: division.rows,
            alpha,
            nprobe: workload.nprobe,
            queries: workload.queries,
            component_ns: workload.component_ns,
            prepare_ns: workload.prepare_ns,
            message_ns: prices.message_ns,
            byte_ns: prices.byte_ns,
            candidates,
        }
    }

    /// The prices of messages that it was made by.
    pub(crate) fn prices(&self) -> MessagePrices {
        MessagePrices { message_ns: self.message_ns, byte_ns: self.byte_ns }
    }

    /// Servers of all units.
    ///
    /// # Errors
    /// None that a plan for these servers can have.
    pub(super) fn placement(&self, over: Over<'_>) -> Result<Placement> {
        let (servers, slices) = (over.servers, self.slices.len() - 1);
        let on = |row: u32, slice: usize| self.cells[row as usize][slice];
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

/// A bit for each server of a slice that has so many replicas. Further ones are on servers of the same slice of other
/// rows, where there are enough rows.
fn replicas_from(home: usize, slices: usize, over: Over<'_>) -> u64 {
    let Over { servers, replicas, .. } = over;
    let step = if servers / slices >= replicas { slices } else { 1 };
    (0..replicas).map(|replica| 1 << ((home + replica * step) % servers)).fold(0, |all, bit| all | bit)
}

impl Division {
    fn new(
        workload: &Workload,
        layout: &GridLayout,
        over: Over<'_>,
        (rows, slices): (usize, usize),
    ) -> Division {
        let servers = over.servers;
        let row_of_list = rows_of(workload, rows);
        let is_turned = rows * slices > servers;
        let widest = if is_turned { 1.0 } else { WIDEST / slices as f64 };
        let slices = slice_edges(workload, layout, slices, widest * layout.dim() as f64);
        let count = slices.len() - 1;
        let on = |row, slice| replicas_from(server_of(servers, count, (row, slice)), count, over);
        let cell = |row| (0..count).map(|slice| on(row, slice)).collect();
        Division { servers, rows, row_of_list, cells: (0..rows).map(cell).collect(), slices, stripes: 1 }
    }

    /// Every server has one of the lists that the members of each list are dealt over.
    fn striped(layout: &GridLayout, over: Over<'_>, lists: usize) -> Division {
        let servers = over.servers;
        Division {
            servers,
            slices: vec![0, layout.groups() as u32],
            rows: servers,
            row_of_list: (0..lists as u32).map(|list| list % servers as u32).collect(),
            cells: (0..servers).map(|server| vec![replicas_from(server, 1, over)]).collect(),
            stripes: servers as u32,
        }
    }

    /// Cost of a slice for each member of a visited list, in components.
    pub(super) fn slice_components(&self, workload: &Workload, layout: &GridLayout, slice: usize) -> f64 {
        let groups = self.slices[slice] as usize..self.slices[slice + 1] as usize;
        let own: f64 = groups.map(|g| workload.alive[g] * layout.components(g).len() as f64).sum();
        own + if slice == 0 { workload.pilot } else { 0.0 }
    }

    /// Jobs of a query: one for each row that it visits, and one for its nearest list alone where lists are sliced.
    fn jobs(&self, workload: &Workload, lists: &[u32]) -> Vec<Job> {
        let alone = if self.slices.len() > 2 { lists.len().min(1) } else { 0 };
        let (first, others) = lists.split_at(alone);
        let mut jobs: Vec<Job> = Vec::new();
        for part in [first, others] {
            let begin = jobs.len();
            for &list in part {
                let row = self.row_of_list[list as usize] as usize;
                let known = jobs[begin..].iter().position(|job| job.row == row).map(|at| begin + at);
                let at = known.unwrap_or_else(|| {
                    jobs.push(Job { row, members: 0.0, work: 0.0 });
                    jobs.len() - 1
                });
                jobs[at].members += f64::from(workload.members[list as usize]);
                jobs[at].work += workload.work(list as usize);
            }
        }
        jobs
    }

    /// The ways of a query's jobs. Rows of whole lists are on one way, which takes along what was found; the slices of
    /// each other row are on a way of its own, with what is left of its vectors.
    fn ways(&self, workload: &Workload, layout: &GridLayout, jobs: &[Job]) -> Vec<Vec<Hop>> {
        // Each server gets what it and those after it need of the query.
        let query_bytes = |slice: usize| {
            let first = layout.edges[self.slices[slice] as usize] as usize;
            FRAME_BYTES + ((layout.dim() - first) * layout.dtype.size()) as f64
        };
        if self.slices.len() == 2 {
            let found = |at: usize| if at == 0 { 0.0 } else { f64::from(workload.k) * HIT_BYTES };
            let hop = |(at, job): (usize, &Job)| Hop {
                on: self.cells[job.row][0],
                bytes: query_bytes(0) + found(at),
            };
            return vec![jobs.iter().enumerate().map(hop).collect()];
        }
        let way = |job: &Job| {
            let hop = |(slice, &on): (usize, &u64)| {
                let left = job.members * workload.alive[self.slices[slice] as usize].min(1.0);
                let sums = if slice == 0 { 0.0 } else { (job.members / 8.0).min(left) + 4.0 * left };
                Hop { on, bytes: query_bytes(slice) + sums }
            };
            self.cells[job.row].iter().enumerate().map(hop).collect()
        };
        jobs.iter().map(way).collect()
    }

    pub(super) fn cost(
        &self,
        workload: &Workload,
        layout: &GridLayout,
        prices: Prices,
        alpha: f64,
    ) -> Candidate {
        let slices = self.slices.len() - 1;
        let servers = self.servers;
        let per_member: Vec<f64> =
            (0..slices).map(|s| workload.component_ns * self.slice_components(workload, layout, s)).collect();
        // The origin alone turns a query, and any server may be the origin.
        let prepare_ns = workload.prepare_ns * workload.queries as f64 / servers as f64;
        let (mut load, mut messages, mut bytes) = (vec![prepare_ns; servers], 0.0, 0.0);
        // The origin is one of the servers, as likely as any other: what it holds needs no message.
        let elsewhere = 1.0 - 1.0 / servers as f64;
        let (mut ways_begun, mut exchanged) = (0.0, vec![0.0; servers]);
        for lists in workload.each() {
            let jobs = self.jobs(workload, lists);
            for (job, (&on, &each)) in jobs
                .iter()
                .flat_map(|job| self.cells[job.row].iter().zip(&per_member).map(move |cell| (job, cell)))
            {
                add_load(&mut load, on, job.work * each + elsewhere * prices.step_ns);
            }
            for way in self.ways(workload, layout, &jobs) {
                // A way over several rows is never all at the origin, but where replicas are: that is not counted.
                let replies = if slices == 1 && way.len() > 1 { 1.0 } else { elsewhere };
                let reply = replies * (FRAME_BYTES + f64::from(workload.k) * HIT_BYTES);
                messages += elsewhere * way.len() as f64 + replies;
                bytes += elsewhere * way.iter().map(|hop| hop.bytes).sum::<f64>() + reply;
                ways_begun += replies;
                // Each side does half of a message.
                let hop_ns = |hop: &Hop| elsewhere * (prices.message_ns + prices.byte_ns * hop.bytes);
                let reply_ns = replies * prices.message_ns + prices.byte_ns * reply;
                for (at, hop) in way.iter().enumerate() {
                    let next_ns = way.get(at + 1).map_or(reply_ns, hop_ns);
                    add_load(&mut exchanged, hop.on, (hop_ns(hop) + next_ns) / 2.0);
                }
                let of_origin = (way.first().map_or(0.0, hop_ns) + reply_ns) / 2.0;
                exchanged.iter_mut().for_each(|ns| *ns += of_origin / servers as f64);
            }
        }
        // The origin goes on when a job is back.
        let origins_ns = ways_begun * prices.step_ns;
        load.iter_mut().for_each(|load| *load += origins_ns / servers as f64);
        let computing: f64 = load.iter().sum();
        let messages_ns = messages * prices.message_ns + bytes * prices.byte_ns;
        let mean = computing / servers as f64;
        let busiest = load.iter().zip(&exchanged).map(|(load, ns)| load + ns).fold(0.0, f64::max);
        let imbalance = (busiest - (computing + messages_ns) / servers as f64).max(0.0);
        let queries = workload.queries.max(1) as f64;
        Candidate {
            rows: self.rows,
            slices,
            stripes: self.stripes,
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

/// A message to the servers of a slice, of which one gets it.
struct Hop {
    on: u64,
    bytes: f64,
}

/// Adds work to the servers of a slice, which share it.
pub(super) fn add_load(load: &mut [f64], on: u64, work: f64) {
    let each = work / f64::from(on.count_ones().max(1));
    load.iter_mut().enumerate().filter(|(s, _)| on >> s & 1 == 1).for_each(|(_, load)| *load += each);
}

/// Whether lists may be striped: with fewer members to a list, more of it fills up blocks. A mode that is asked for may
/// take more memory.
fn has_room_for_stripes(workload: &Workload, servers: usize, mode: Mode) -> bool {
    let members: u64 = workload.members.iter().map(|&members| u64::from(members)).sum();
    let places = |size: u32| GridLayout::places(size as usize) as u64;
    let striped = workload.members.iter().flat_map(|&size| sizes_of(size, servers as u32)).map(places);
    let has_room = striped.sum::<u64>() as f64 <= PADDED * members as f64;
    servers > 1 && (mode == Mode::Striped || mode == Mode::Harmony && has_room)
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
        (0..).zip(&visits).map(|(list, &v)| (f64::from(v) + 0.5) * workload.work(list)).collect();
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

//! A plan that follows the queries: lists that are visited more move to rows whose servers have less to do, a few at a
//! time, so that servers load little beside what they have.

use std::collections::BTreeMap;

use stratann_core::format::grid::GridLayout;
use stratann_core::place::Placement;
use stratann_storage::{Error, Result};

use super::plan::{Division, Prices, add_load};
use super::workload::Workload;
use super::{Candidate, GridPartition, GridPlan, Mode, Over};
use crate::manifest::MessagePrices;

/// Bytes that a server loads in one step, over what it holds.
const STEP: f64 = 0.25;
/// Bytes of a server over the mean, at most.
const FULLEST: f64 = 1.25;
/// Imbalance over the mean load below which no list moves.
const EVEN: f64 = 0.005;
/// Queries of servers that are enough to plan by.
const QUERIES_MIN: usize = 100;

/// Division of the lists of running servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current<'a> {
    /// The servers of all units.
    pub(crate) placement: &'a Placement,
    /// The first group of each slice, and the number of groups.
    pub(crate) slices: &'a [u32],
    /// Lists of each centroid.
    pub(crate) stripes: u32,
}

/// Costs of queries, as lists are and as they could be.
pub(crate) struct Adapted {
    /// Costs as lists are.
    pub(crate) current: Candidate,
    /// The cheapest plan of all, whatever has to move for it.
    pub(crate) best: Candidate,
    /// The plan of the next step, whose first candidate says what it costs; `None` where no list is better moved.
    pub(crate) step: Option<GridPlan>,
    /// Bytes that each server loads for the step.
    pub(crate) loaded_bytes: Vec<u64>,
    /// Prices of messages that they are compared by.
    pub(crate) prices: MessagePrices,
}

/// Plans the next step.
///
/// # Errors
/// Too few queries; a plan that cannot be.
pub(super) fn adapt(
    workload: Workload,
    layout: &GridLayout,
    current: Current<'_>,
    over: Over<'_>,
) -> Result<Adapted> {
    if workload.queries < QUERIES_MIN {
        return Err(Error::bad_input(format!(
            "the servers tell of {} queries; send them {QUERIES_MIN} or more",
            workload.queries
        )));
    }
    let alpha = over.grid.alpha.unwrap_or(over.servers as f64);
    let prices = Prices::of(over.grid)?;
    // Both plans by the same prices.
    let by = prices.of_messages();
    let grid =
        GridPartition { message_ns: Some(by.message_ns), byte_ns: Some(by.byte_ns), ..over.grid.clone() };
    let over = Over { grid: &grid, ..over };
    let best = GridPlan::choose(&workload, layout, over)?.candidates.swap_remove(0);
    let seen = if current.stripes > 1 { workload.striped(current.stripes) } else { workload };
    let division = Division::of(current, seen.members.len())?;
    let cost = |division: &Division| division.cost(&seen, layout, prices, alpha);
    let now = cost(&division);
    let mut moves = Moves::new(&division, &seen, layout);
    // Each server has its share of every list that is striped.
    if current.stripes > 1 || !moves.run() {
        let loaded_bytes = vec![0; over.servers];
        return Ok(Adapted { current: now, best, step: None, loaded_bytes, prices: by });
    }
    let loaded_bytes = moves.loaded.iter().map(|&bytes| bytes as u64).collect();
    let moved = moves.division;
    let candidates = vec![cost(&moved), now.clone()];
    let step = GridPlan::of(moved, (Mode::Harmony, alpha), &seen, prices, candidates);
    Ok(Adapted { current: now, best, step: Some(step), loaded_bytes, prices: by })
}

impl Division {
    /// The division of running servers: lists whose slices are on the same servers are a row.
    fn of(current: Current<'_>, lists: usize) -> Result<Division> {
        let Current { placement, slices, stripes } = current;
        let units = slices.len();
        if placement.all().len() != units * lists {
            return Err(Error::bad_input(
                "the partition is not one of this index; name the index that it was made from",
            ));
        }
        let (mut rows, mut row_of_list, mut cells) = (BTreeMap::new(), Vec::with_capacity(lists), Vec::new());
        for list in placement.all().chunks_exact(units) {
            let row = *rows.entry(&list[1..]).or_insert_with(|| {
                cells.push(list[1..].to_vec());
                cells.len() as u32 - 1
            });
            row_of_list.push(row);
        }
        let (servers, rows) = (placement.servers(), cells.len());
        Ok(Division { servers, slices: slices.to_vec(), rows, row_of_list, cells, stripes })
    }
}

/// Lists that move from row to row, or change places.
struct Moves {
    division: Division,
    /// Work of each slice of each list.
    work: Vec<Vec<f64>>,
    /// Bytes of each slice of each list, about.
    bytes: Vec<Vec<f64>>,
    load: Vec<f64>,
    held: Vec<f64>,
    loaded: Vec<f64>,
    /// Bytes that each server may load.
    room: Vec<f64>,
}

/// A list that moves from a row to another.
struct Move {
    list: usize,
    from: usize,
    to: usize,
}

impl Moves {
    fn new(division: &Division, workload: &Workload, layout: &GridLayout) -> Moves {
        let slices = division.slices.len() - 1;
        let visits = workload.visits();
        let components: Vec<f64> =
            (0..slices).map(|slice| division.slice_components(workload, layout, slice)).collect();
        let edge = |slice: usize| f64::from(layout.edges[division.slices[slice] as usize]);
        let widths: Vec<f64> = (0..slices).map(|slice| edge(slice + 1) - edge(slice)).collect();
        let of_lists = |each: &[f64], times: &dyn Fn(usize) -> f64| -> Vec<Vec<f64>> {
            (0..workload.members.len()).map(|list| each.iter().map(|x| x * times(list)).collect()).collect()
        };
        let members = |list: usize| f64::from(workload.members[list]);
        let work = of_lists(&components, &|list| f64::from(visits[list]) * workload.work(list));
        let bytes = of_lists(&widths, &|list| members(list) * layout.dtype.size() as f64);
        let mut moves = Moves {
            division: division.clone(),
            load: vec![0.0; division.servers],
            held: vec![0.0; division.servers],
            loaded: vec![0.0; division.servers],
            room: vec![0.0; division.servers],
            work,
            bytes,
        };
        for list in 0..workload.members.len() {
            for (slice, &on) in division.cells[division.row_of_list[list] as usize].iter().enumerate() {
                add_load(&mut moves.load, on, moves.work[list][slice]);
                servers_of(on).for_each(|server| moves.held[server] += moves.bytes[list][slice]);
            }
        }
        moves.room = moves.held.iter().map(|held| STEP * held).collect();
        moves
    }

    /// Moves lists while that makes loads more equal. Returns whether any was moved.
    fn run(&mut self) -> bool {
        let mut has_moved = false;
        for _ in 0..self.work.len() {
            let mean = self.load.iter().sum::<f64>() / self.load.len() as f64;
            let Some((exchange, gain)) = self.best() else { break };
            if gain <= (EVEN * mean).powi(2) {
                break;
            }
            self.apply(exchange);
            has_moved = true;
        }
        has_moved
    }

    /// The exchange off the busiest server that makes the sum of squared loads least, within what servers may load and
    /// hold, and by how much that falls.
    fn best(&self) -> Option<(Exchange, f64)> {
        let busiest = (0..self.load.len()).max_by(|&a, &b| self.load[a].total_cmp(&self.load[b]))?;
        let is_on = |row: usize| self.division.cells[row].iter().any(|on| on >> busiest & 1 == 1);
        let coldest: Vec<Option<usize>> = (0..self.division.rows).map(|row| self.coldest(row)).collect();
        let mut best: Option<(Exchange, f64)> = None;
        for list in 0..self.work.len() {
            let from = self.division.row_of_list[list] as usize;
            if !is_on(from) || self.work[list].iter().all(|&work| work == 0.0) {
                continue;
            }
            for row in (0..self.division.rows).filter(|&row| row != from) {
                for back in [None, coldest[row]] {
                    let exchange = Exchange { list, row, back };
                    let gain = self.gain(exchange);
                    if gain > best.map_or(0.0, |best| best.1) && self.has_room(exchange) {
                        best = Some((exchange, gain));
                    }
                }
            }
        }
        best
    }

    /// The list of a row with the least work for its bytes.
    fn coldest(&self, row: usize) -> Option<usize> {
        let sum = |of: &[f64]| of.iter().sum::<f64>();
        let warmth = |list: usize| sum(&self.work[list]) / sum(&self.bytes[list]);
        let own = (0..self.work.len()).filter(|&list| self.division.row_of_list[list] as usize == row);
        own.filter(|&list| sum(&self.bytes[list]) > 0.0).min_by(|&a, &b| warmth(a).total_cmp(&warmth(b)))
    }

    /// The lists that move.
    fn parts(&self, exchange: Exchange) -> impl Iterator<Item = Move> + use<> {
        let Exchange { list, row, back } = exchange;
        let from = self.division.row_of_list[list] as usize;
        let there = Move { list, from, to: row };
        [there].into_iter().chain(back.map(|back| Move { list: back, from: row, to: from }))
    }

    /// Amount by which the sum of squared loads falls.
    fn gain(&self, exchange: Exchange) -> f64 {
        let mut change = vec![0.0; self.load.len()];
        for Move { list, from, to } in self.parts(exchange) {
            for (slice, &work) in self.work[list].iter().enumerate() {
                add_load(&mut change, self.division.cells[from][slice], -work);
                add_load(&mut change, self.division.cells[to][slice], work);
            }
        }
        self.load.iter().zip(&change).map(|(load, change)| -change * (2.0 * load + change)).sum()
    }

    /// Bytes that each server would load, and that it would hold more.
    fn bytes(&self, exchange: Exchange) -> Vec<(f64, f64)> {
        let mut bytes = vec![(0.0, 0.0); self.held.len()];
        for Move { list, from, to } in self.parts(exchange) {
            for (slice, &own) in self.bytes[list].iter().enumerate() {
                let (old, new) = (self.division.cells[from][slice], self.division.cells[to][slice]);
                servers_of(new & !old).for_each(|s| bytes[s] = (bytes[s].0 + own, bytes[s].1 + own));
                servers_of(old & !new).for_each(|s| bytes[s].1 -= own);
            }
        }
        bytes
    }

    fn has_room(&self, exchange: Exchange) -> bool {
        let mean = self.held.iter().sum::<f64>() / self.held.len() as f64;
        self.bytes(exchange).into_iter().enumerate().all(|(server, (loads, more))| {
            let is_little = loads == 0.0 || self.loaded[server] + loads <= self.room[server];
            is_little && (more <= 0.0 || self.held[server] + more <= FULLEST * mean)
        })
    }

    fn apply(&mut self, exchange: Exchange) {
        for (server, (loads, more)) in self.bytes(exchange).into_iter().enumerate() {
            self.loaded[server] += loads;
            self.held[server] += more;
        }
        for Move { list, from, to } in self.parts(exchange) {
            for (slice, &work) in self.work[list].iter().enumerate() {
                add_load(&mut self.load, self.division.cells[from][slice], -work);
                add_load(&mut self.load, self.division.cells[to][slice], work);
            }
            self.division.row_of_list[list] = to as u32;
        }
    }
}

/// A list that moves to another row, and where there is no room for it, one that moves back.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    list: usize,
    row: usize,
    back: Option<usize>,
}

fn servers_of(on: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |server| on >> server & 1 == 1)
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};

    use super::*;

    fn layout() -> GridLayout {
        let edges = GridLayout::edges_of(384);
        GridLayout {
            dtype: DType::F32,
            metric: Metric::L2,
            edges,
            columns: 1,
            id_bytes: 4,
            pilot: 0,
            code: None,
        }
    }

    /// 100 members in each of 40 lists; queries visit one list each.
    fn seen(visits: impl Iterator<Item = u32>) -> Workload {
        let groups = layout().groups() as i32;
        let known = Workload {
            members: vec![100; 40],
            alive: (0..=groups).map(|group| 0.5f64.powi(group)).collect(),
            component_ns: 1.0,
            prepare_ns: 100.0,
            nprobe: 1,
            k: 10,
            ..Workload::default()
        };
        let queries: Vec<Vec<u32>> = visits.map(|list| vec![list]).collect();
        known.observed(&queries)
    }

    fn prices() -> GridPartition {
        GridPartition { message_ns: Some(10.0), byte_ns: Some(0.0), ..GridPartition::default() }
    }

    #[test]
    fn hot_lists_are_dealt_again_step_by_step() {
        let (layout, prices) = (layout(), prices());
        let over = Over { servers: 4, replicas: 1, grid: &prices, may_stripe: false };
        let even = GridPlan::choose(&seen((0..400).map(|i| i % 40)), &layout, over).unwrap();
        assert_eq!((even.rows, even.slices.len()), (4, 2));
        let mut placement = even.placement(over).unwrap();
        // The lists of the first row become hot.
        let hot: Vec<u32> = (0..40).filter(|&list| even.row_of_list[list as usize] == 0).collect();
        let load = |i: u32| if i.is_multiple_of(4) { i % 40 } else { hot[i as usize % hot.len()] };
        let (mut shares, mut steps) = (vec![], 0);
        loop {
            let current = Current { placement: &placement, slices: &even.slices, stripes: 1 };
            let found = adapt(seen((0..1000).map(load)), &layout, current, over).unwrap();
            shares.push(found.current.largest_share);
            let Some(step) = found.step else { break };
            assert!(step.candidates[0].cost_ms < found.current.cost_ms);
            let moved = step.placement(over).unwrap();
            // A server loads a quarter of ten lists at most.
            for server in 0..4 {
                let is_new = |(old, new): &(&u64, &u64)| (*new & !*old) >> server & 1 == 1;
                let loaded = placement.all().iter().zip(moved.all()).filter(is_new).count() / 2;
                assert!(loaded <= 2, "server {server}: {loaded}");
            }
            placement = moved;
            steps += 1;
            assert!(steps < 10);
        }
        assert!(steps > 1 && shares[0] > 2.0 && *shares.last().unwrap() < 1.15, "{shares:?}");
    }

    #[test]
    fn an_even_load_moves_nothing_and_few_queries_tell_nothing() {
        let (layout, prices) = (layout(), prices());
        let over = Over { servers: 4, replicas: 2, grid: &prices, may_stripe: false };
        let plan = GridPlan::choose(&seen((0..400).map(|i| i % 40)), &layout, over).unwrap();
        let placement = plan.placement(over).unwrap();
        let current = Current { placement: &placement, slices: &plan.slices, stripes: 1 };
        assert!(adapt(seen((0..400).map(|i| i % 40)), &layout, current, over).unwrap().step.is_none());
        let few = adapt(seen(0..40), &layout, current, over);
        assert!(few.is_err_and(|e| e.message.contains("100 or more")));
        let other = Current { slices: &[0, 1, plan.slices[1]], ..current };
        assert!(adapt(seen((0..400).map(|i| i % 40)), &layout, other, over).is_err());
    }
}

//! Batches of queries on compute nodes that read clusters from memory nodes: recorded batches under a load.
//!
//! A compute node has one worker or several, each with threads of its own. A worker takes one batch at a time, as a
//! driver that gathers does. It reads the headers and chooses the clusters of all queries; then it reads doorbell after
//! doorbell, those that the cache has first. One thread takes in what has arrived, all threads search it. The next
//! doorbell is under way meanwhile, and the one after it begins when the first is searched. Links are queues, first
//! come, first served: that of a memory node carries all bytes that it sends, that of a compute node all that it
//! receives. Clients ask for one batch after another. Time is in whole nanoseconds; equal traces give equal times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::queue::{Queue, share};

mod timeline;

pub use timeline::Spent;
use timeline::Timeline;

/// A read that serves the queries of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchLoad {
    /// The memory node that has the bytes.
    pub node: u8,
    /// Number of bytes; 0 where the cache has them.
    pub bytes: u32,
    /// The queries that search them, and the distances that each computes.
    pub searches: Vec<(u32, u32)>,
}

/// A recorded batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchTrace {
    /// Bytes of the headers, which the first memory node has; 0 for none.
    pub headers_bytes: u32,
    /// Distances to representatives, by query.
    pub queries: Vec<u32>,
    /// Loads of each doorbell, in order.
    pub doorbells: Vec<Vec<BatchLoad>>,
}

/// Prices. They are integers, so that a replay is the same on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadCosts {
    /// A distance to a representative, with its share of all that precedes the first read. Picoseconds.
    pub meta_comparison_ps: u64,
    /// A distance to a vector of a cluster, with its share of the search. Picoseconds.
    pub comparison_ps: u64,
    /// Taking in a byte of a load: checksum, copy to the cache, delivery. Picoseconds.
    pub load_byte_ps: u64,
    /// Cost of a range of a doorbell for the link of its memory node, besides its bytes.
    pub range_ns: u64,
    /// Latency between a compute node and a memory node, one way.
    pub latency_ns: u64,
    /// Bits per second of each link; 0 for no limit.
    pub bits: u64,
}

/// Numbers of nodes, of their workers and of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Compute nodes.
    pub compute_nodes: usize,
    /// Memory nodes.
    pub memory_nodes: usize,
    /// Batches that a compute node has under way at once.
    pub workers: usize,
    /// Threads of each of them.
    pub threads: usize,
    /// Clients of all compute nodes. Each waits for its batch before it asks for the next.
    pub clients: usize,
    /// Whether a doorbell is under way while the one before is searched.
    pub overlaps: bool,
    /// Batches of each client that are measured, after the first.
    pub rounds: usize,
}

/// Result of a replay, without the first batch of each client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadTiming {
    /// Answered queries per second.
    pub qps: f64,
    /// Latency of each batch, from its client's request to its end, nanoseconds.
    pub batch_ns: Vec<u64>,
    /// Latency of each query, from the request for its batch, nanoseconds.
    pub query_ns: Vec<u64>,
    /// Queries of these batches.
    pub queries: usize,
    /// Time of all batches under way, nanoseconds.
    pub spent: Spent,
    /// Utilisation of the threads of all compute nodes, 0 to 1.
    pub processors: f64,
    /// Utilisation of the link of each memory node.
    pub memory_links: Vec<f64>,
    /// Utilisation of the busiest link of a compute node.
    pub compute_link: f64,
}

/// Utilisation from which a resource limits the throughput.
const BUSY: f64 = 0.8;

impl LoadTiming {
    /// Resource that limits the throughput.
    pub fn bottleneck(&self) -> String {
        let links = self.memory_links.iter().enumerate();
        let links = links.map(|(node, &share)| (share, format!("link of memory node {node}")));
        let others = [
            (self.processors, "processors of the compute nodes".to_string()),
            (self.compute_link, "links of the compute nodes".to_string()),
        ];
        let most = others
            .into_iter()
            .chain(links)
            .fold((0.0, String::new()), |most, next| if next.0 > most.0 { next } else { most });
        if most.0 >= BUSY { most.1 } else { "waiting within batches".to_string() }
    }
}

impl LoadCosts {
    fn meta_ns(&self, comparisons: u32) -> u64 {
        u64::from(comparisons).saturating_mul(self.meta_comparison_ps) / 1000
    }

    fn search_ns(&self, comparisons: u32) -> u64 {
        u64::from(comparisons).saturating_mul(self.comparison_ps) / 1000
    }

    fn take_in_ns(&self, bytes: u32) -> u64 {
        u64::from(bytes).saturating_mul(self.load_byte_ps) / 1000
    }

    fn wire_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000).checked_div(u128::from(self.bits)).unwrap_or(0) as u64
    }
}

/// A batch that a worker has under way.
struct Live<'a> {
    trace: &'a BatchTrace,
    client: usize,
    asked_ns: u64,
    // Doorbells that have begun, and those of them that have been searched.
    rung: usize,
    searched: usize,
    // By doorbell: memory nodes whose part is under way, and the end of the searches so far.
    parts: Vec<(usize, u64)>,
    // By query: when its last search ends.
    ends_ns: Vec<u64>,
    timeline: Timeline,
}

/// A worker of a compute node.
struct Worker<'a> {
    node: usize,
    threads: Queue,
    live: Option<Live<'a>>,
}

struct Node {
    receives: Queue,
    // Clients that wait for a worker, and since when.
    waiting: VecDeque<(usize, u64)>,
    idle: Vec<usize>,
    next: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The headers of a batch have arrived.
    Headers { worker: usize },
    /// All queries of a batch have chosen their clusters.
    Chosen { worker: usize },
    /// A memory node's part of a doorbell has arrived; without a node, the part that the cache has.
    Arrived { worker: usize, doorbell: usize, node: Option<u8> },
    /// A doorbell has been searched.
    Searched { worker: usize },
}

/// Busy times at one time.
#[derive(Clone, Debug, Default)]
struct Mark {
    at_ns: u64,
    processors_ns: u64,
    memory_ns: Vec<u64>,
    receive_ns: Vec<u64>,
}

struct Replay<'a> {
    streams: &'a [Vec<BatchTrace>],
    costs: &'a LoadCosts,
    fleet: Fleet,
    nodes: Vec<Node>,
    workers: Vec<Worker<'a>>,
    sends: Vec<Queue>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    answered: usize,
    timing: LoadTiming,
}

/// Replays recorded batches. Compute node `i` has the batches of stream `i`, again and again; with fewer streams than
/// nodes several have the same, each from another batch on. Everything is measured between the end of the first round
/// of batches of all clients and the end of the last.
pub fn replay_loads(streams: &[Vec<BatchTrace>], costs: &LoadCosts, fleet: Fleet) -> LoadTiming {
    let at_least_one = |count: usize| count.max(1);
    let fleet = Fleet {
        compute_nodes: at_least_one(fleet.compute_nodes),
        memory_nodes: fleet.memory_nodes.clamp(1, 256),
        workers: at_least_one(fleet.workers),
        clients: at_least_one(fleet.clients),
        rounds: at_least_one(fleet.rounds),
        ..fleet
    };
    if streams.is_empty() || streams.iter().any(Vec::is_empty) {
        return LoadTiming::default();
    }
    let node = |number: usize| {
        let first = number * fleet.workers;
        let stream = &streams[number % streams.len()];
        Node {
            receives: Queue::new(1),
            waiting: VecDeque::new(),
            idle: (first..first + fleet.workers).rev().collect(),
            next: number * stream.len() / fleet.compute_nodes,
        }
    };
    let worker = |number: usize| Worker {
        node: number / fleet.workers,
        threads: Queue::new(fleet.threads),
        live: None,
    };
    let replay = Replay {
        streams,
        costs,
        fleet,
        nodes: (0..fleet.compute_nodes).map(node).collect(),
        workers: (0..fleet.compute_nodes * fleet.workers).map(worker).collect(),
        sends: vec![Queue::new(1); fleet.memory_nodes],
        events: BinaryHeap::new(),
        scheduled: 0,
        answered: 0,
        timing: LoadTiming::default(),
    };
    replay.run()
}

impl<'a> Replay<'a> {
    fn run(mut self) -> LoadTiming {
        (0..self.fleet.clients).for_each(|client| self.ask(0, client));
        let (first, last) = (self.fleet.clients, self.fleet.clients * (1 + self.fleet.rounds));
        let (mut from, mut to) = (Mark::default(), Mark::default());
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            let ended = match event {
                Event::Headers { worker } => self.choose(now, worker),
                Event::Chosen { worker } => self.ring(now, worker),
                Event::Arrived { worker, doorbell, node } => self.arrived(now, worker, doorbell, node),
                Event::Searched { worker } => self.searched(now, worker),
            };
            if let Some(client) = ended {
                self.answered += 1;
                if self.answered == first {
                    from = self.mark(now);
                    self.timing = LoadTiming::default();
                } else if self.answered == last {
                    to = self.mark(now);
                    break;
                }
                self.ask(now, client);
            }
        }
        self.finish(&from, &to)
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.events.push(Reverse((at_ns, self.scheduled, event)));
        self.scheduled += 1;
    }

    /// A client asks for its next batch.
    fn ask(&mut self, now: u64, client: usize) {
        let number = client % self.fleet.compute_nodes;
        self.nodes[number].waiting.push_back((client, now));
        self.admit(now, number);
    }

    /// Begins a batch where a client and a worker wait.
    fn admit(&mut self, now: u64, number: usize) {
        let node = &mut self.nodes[number];
        if node.idle.is_empty() {
            return;
        }
        let Some((client, asked_ns)) = node.waiting.pop_front() else { return };
        let Some(at) = node.idle.pop() else { return };
        let streams: &'a [Vec<BatchTrace>] = self.streams;
        let stream = &streams[number % streams.len()];
        let trace = &stream[node.next % stream.len()];
        node.next += 1;
        self.workers[at].live = Some(Live {
            trace,
            client,
            asked_ns,
            rung: 0,
            searched: 0,
            parts: trace.doorbells.iter().map(|_| (0, 0)).collect(),
            ends_ns: vec![now; trace.queries.len()],
            timeline: Timeline::begin(now),
        });
        let mut arrives_ns = now;
        if trace.headers_bytes > 0 {
            arrives_ns = self.transfer(now, number, 0, (1, u64::from(trace.headers_bytes)));
            self.note(at, |timeline| timeline.transferred(now, arrives_ns));
        }
        self.schedule(arrives_ns, Event::Headers { worker: at });
    }

    fn note(&mut self, worker: usize, note: impl FnOnce(&mut Timeline)) {
        if let Some(live) = &mut self.workers[worker].live {
            note(&mut live.timeline);
        }
    }

    /// Sends ranges from a memory node to a compute node. Returns when all have arrived.
    fn transfer(&mut self, now: u64, to: usize, from: usize, (ranges, bytes): (u64, u64)) -> u64 {
        let wire_ns = self.costs.wire_ns(bytes);
        let busy_ns = wire_ns + ranges * self.costs.range_ns;
        let from = from.min(self.sends.len() - 1);
        let sent = self.sends[from].take(now + self.costs.latency_ns, busy_ns);
        self.nodes[to].receives.take(sent - wire_ns, wire_ns) + self.costs.latency_ns
    }

    /// All queries choose their clusters.
    fn choose(&mut self, now: u64, at: usize) -> Option<usize> {
        let costs = self.costs;
        let Worker { threads, live, .. } = &mut self.workers[at];
        let live = live.as_mut()?;
        let mut ends = now;
        for (query, &comparisons) in live.trace.queries.iter().enumerate() {
            live.ends_ns[query] = threads.take(now, costs.meta_ns(comparisons));
            ends = ends.max(live.ends_ns[query]);
        }
        live.timeline.chosen(now, ends);
        self.schedule(ends, Event::Chosen { worker: at });
        None
    }

    /// Begins the doorbells that may. Returns the client of a batch that has ended.
    fn ring(&mut self, now: u64, at: usize) -> Option<usize> {
        let most = if self.fleet.overlaps { 2 } else { 1 };
        loop {
            let live = self.workers[at].live.as_mut()?;
            if live.searched == live.trace.doorbells.len() {
                return self.end(now, at);
            }
            let loads = live.trace.doorbells.get(live.rung)?;
            if live.rung - live.searched >= most {
                return None;
            }
            let doorbell = live.rung;
            live.rung += 1;
            self.ring_one(now, at, doorbell, loads);
        }
    }

    fn ring_one(&mut self, now: u64, at: usize, doorbell: usize, loads: &[BatchLoad]) {
        let node = self.workers[at].node;
        let mut parts = vec![(0, 0); self.sends.len()];
        for load in loads.iter().filter(|load| load.bytes > 0) {
            let part = &mut parts[usize::from(load.node).min(self.sends.len() - 1)];
            *part = (part.0 + 1, part.1 + u64::from(load.bytes));
        }
        let mut under_way = 0;
        for (from, &part) in parts.iter().enumerate().filter(|(_, part)| part.0 > 0) {
            let arrives_ns = self.transfer(now, node, from, part);
            self.note(at, |timeline| timeline.transferred(now, arrives_ns));
            self.schedule(arrives_ns, Event::Arrived { worker: at, doorbell, node: Some(from as u8) });
            under_way += 1;
        }
        if loads.iter().any(|load| load.bytes == 0) {
            self.schedule(now, Event::Arrived { worker: at, doorbell, node: None });
            under_way += 1;
        }
        if let Some(live) = &mut self.workers[at].live {
            live.parts[doorbell] = (under_way, now);
        }
        if under_way == 0 {
            self.schedule(now, Event::Searched { worker: at });
        }
    }

    /// One thread takes in what has arrived, and all threads search it.
    fn arrived(&mut self, now: u64, at: usize, doorbell: usize, from: Option<u8>) -> Option<usize> {
        let (costs, last) = (self.costs, (self.sends.len() - 1) as u8);
        let Worker { threads, live, .. } = &mut self.workers[at];
        let live = live.as_mut()?;
        let node = |load: &&BatchLoad| (load.bytes > 0).then_some(load.node.min(last));
        let loads = live.trace.doorbells[doorbell].iter();
        let loads: Vec<_> = loads.filter(|load| node(load) == from).collect();
        let taken_in: Vec<u64> =
            loads.iter().map(|load| threads.take_on(0, now, costs.take_in_ns(load.bytes))).collect();
        let mut ends = taken_in.last().copied().unwrap_or(now);
        let begins =
            taken_in.first().zip(loads.first()).map_or(now, |(end, load)| end - costs.take_in_ns(load.bytes));
        for (load, &ready) in loads.iter().zip(&taken_in) {
            for &(query, compared) in &load.searches {
                let end = threads.take(ready, costs.search_ns(compared));
                ends = ends.max(end);
                if let Some(query_end) = live.ends_ns.get_mut(query as usize) {
                    *query_end = (*query_end).max(end);
                }
            }
        }
        live.timeline.searched(begins, ends);
        let (parts, searched_ns) = &mut live.parts[doorbell];
        (*parts, *searched_ns) = (*parts - 1, ends.max(*searched_ns));
        if *parts == 0 {
            let at_ns = *searched_ns;
            self.schedule(at_ns, Event::Searched { worker: at });
        }
        None
    }

    fn searched(&mut self, now: u64, at: usize) -> Option<usize> {
        self.workers[at].live.as_mut()?.searched += 1;
        self.ring(now, at)
    }

    /// Ends a batch. Returns its client.
    fn end(&mut self, now: u64, at: usize) -> Option<usize> {
        let live = self.workers[at].live.take()?;
        let timing = &mut self.timing;
        timing.batch_ns.push(now - live.asked_ns);
        timing.query_ns.extend(live.ends_ns.iter().map(|end| end - live.asked_ns));
        timing.queries += live.trace.queries.len();
        timing.spent.add(&live.timeline.end(now));
        let number = self.workers[at].node;
        self.nodes[number].idle.push(at);
        self.admit(now, number);
        Some(live.client)
    }

    fn mark(&self, now: u64) -> Mark {
        let busy = |queue: &Queue| queue.busy_ns(now);
        Mark {
            at_ns: now,
            processors_ns: self.workers.iter().map(|worker| busy(&worker.threads)).sum(),
            memory_ns: self.sends.iter().map(busy).collect(),
            receive_ns: self.nodes.iter().map(|node| busy(&node.receives)).collect(),
        }
    }

    fn finish(self, from: &Mark, to: &Mark) -> LoadTiming {
        let spent_ns = to.at_ns.saturating_sub(from.at_ns);
        let share = |servers: usize, (before, after): (u64, u64)| {
            share(servers, (from.at_ns, before), (to.at_ns, after))
        };
        let shares = |from: &[u64], to: &[u64]| -> Vec<f64> {
            from.iter().zip(to).map(|(from, to)| share(1, (*from, *to))).collect()
        };
        let threads = self.workers.len() * self.fleet.threads.max(1);
        LoadTiming {
            qps: if spent_ns == 0 { 0.0 } else { self.timing.queries as f64 * 1e9 / spent_ns as f64 },
            processors: share(threads, (from.processors_ns, to.processors_ns)),
            memory_links: shares(&from.memory_ns, &to.memory_ns),
            compute_link: shares(&from.receive_ns, &to.receive_ns).into_iter().fold(0.0, f64::max),
            ..self.timing
        }
    }
}

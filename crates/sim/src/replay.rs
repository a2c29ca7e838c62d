//! Queries under load: their traces over threads, disks and links that are busy.
//!
//! A server has some threads, one disk and one way out. Each is a line: first come, first served, by the order in which things become
//! ready. Time is in whole nanoseconds; equal traces, costs, load and seed give equal times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use stratann_core::build::hash;

use crate::costs::Costs;
use crate::trace::{Task, TaskId, Trace};

/// How queries come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many at a time: one that is answered is replaced at once. With enough of them this finds the most that the servers can do.
    Closed {
        /// Queries in flight in the whole cluster.
        in_flight: usize,
    },
    /// As they like, so many a second on average (Poisson).
    Open {
        /// Queries a second.
        per_second: f64,
    },
}

/// Shares of the time for which something was busy, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Utilisation {
    /// Threads.
    pub cpu: f64,
    /// The disk.
    pub disk: f64,
    /// The way out.
    pub network: f64,
}

impl Utilisation {
    /// The name of what was busiest.
    pub fn bottleneck(&self) -> &'static str {
        let all = [(self.cpu, "cpu"), (self.disk, "disk"), (self.network, "network")];
        all.into_iter().fold(all[0], |most, next| if next.0 > most.0 { next } else { most }).1
    }

    fn most(self, other: Utilisation) -> Utilisation {
        Utilisation {
            cpu: self.cpu.max(other.cpu),
            disk: self.disk.max(other.disk),
            network: self.network.max(other.network),
        }
    }
}

/// What a replay came to. The first queries, which find the cluster empty, are not in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Queries answered a second.
    pub qps: f64,
    /// From asked to answered, nanoseconds, for each query in the order in which they were asked.
    pub latency_ns: Vec<u64>,
    /// By server.
    pub servers: Vec<Utilisation>,
    /// When the last task ended, nanoseconds.
    pub ended_ns: u64,
}

impl Timing {
    /// For threads, disks and links, that of the server where each is busiest.
    pub fn busiest(&self) -> Utilisation {
        self.servers.iter().fold(Utilisation::default(), |most, &u| most.most(u))
    }
}

/// Some servants of one kind and what waits for them, first come, first served.
#[derive(Clone, Debug)]
struct Line {
    free_at: Vec<u64>,
    taken_ns: u64,
}

impl Line {
    fn new(servants: usize) -> Line {
        Line { free_at: vec![0; servants.max(1)], taken_ns: 0 }
    }

    /// Something is ready at `now` and keeps a servant busy for so long; gives when it ends.
    fn take(&mut self, now: u64, busy_ns: u64) -> u64 {
        self.taken_ns += busy_ns;
        let Some(first) = self.free_at.iter_mut().min() else { return now };
        *first = now.max(*first) + busy_ns;
        *first
    }

    /// For how long servants were busy until `now`, all of them together.
    fn busy_ns(&self, now: u64) -> u64 {
        let promised: u64 = self.free_at.iter().map(|at| at.saturating_sub(now)).sum();
        self.taken_ns - promised
    }

    fn share(&self, from: (u64, u64), to: (u64, u64)) -> f64 {
        let spent = (to.0 - from.0) * self.free_at.len() as u64;
        if spent == 0 { 0.0 } else { (to.1 - from.1) as f64 / spent as f64 }
    }
}

#[derive(Clone, Debug)]
struct Server {
    threads: Line,
    disk: Line,
    out: Line,
}

/// A query in flight.
struct Live {
    trace: usize,
    number: usize,
    asked_ns: u64,
    waits: Vec<u32>,
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask,
    Ended { slot: usize, task: TaskId },
}

/// The state of all lines at one time.
#[derive(Default)]
struct Mark {
    at_ns: u64,
    answered: usize,
    busy_ns: Vec<[u64; 3]>,
}

struct Replay<'a> {
    traces: &'a [Trace],
    costs: &'a Costs,
    load: Load,
    queries: usize,
    seed: u64,
    servers: Vec<Server>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    live: Vec<Live>,
    idle: Vec<usize>,
    asked: usize,
    answered: usize,
    next_ask_ns: f64,
    // The queries with whose asking the time that counts begins and ends.
    window: (usize, usize),
    latency_ns: Vec<u64>,
    marks: [Mark; 2],
}

/// Replays `queries` queries (the traces in turn, again and again) on `servers` servers.
///
/// Rates and shares are over the time between the asking of two queries: one after a quarter of all (or after those in flight, when they are
/// more), and one of the last. With a constant number in flight these are a multiple of it apart: queries that begin together may
/// go on together, in waves, and a part of a wave would count too much or too little.
pub fn replay(
    traces: &[Trace],
    servers: usize,
    costs: &Costs,
    load: Load,
    queries: usize,
    seed: u64,
) -> Timing {
    let server = Server { threads: Line::new(costs.threads), disk: Line::new(1), out: Line::new(1) };
    let in_flight = if let Load::Closed { in_flight } = load { in_flight } else { 0 };
    let end = queries.saturating_sub(1);
    let first = in_flight.max(queries / 4).min(end);
    let waves = (end - first).checked_div(in_flight).unwrap_or(0);
    let last = if waves > 0 { first + waves * in_flight } else { end };
    let mut replay = Replay {
        traces,
        costs,
        load,
        queries: if traces.is_empty() { 0 } else { queries },
        seed,
        servers: vec![server; servers],
        events: BinaryHeap::new(),
        scheduled: 0,
        live: Vec::new(),
        idle: Vec::new(),
        asked: 0,
        answered: 0,
        next_ask_ns: 0.0,
        window: (first, last),
        latency_ns: vec![0; queries],
        marks: [Mark::default(), Mark::default()],
    };
    let ended_ns = replay.run();
    replay.timing(ended_ns)
}

impl Replay<'_> {
    fn run(&mut self) -> u64 {
        let at_once = if let Load::Closed { in_flight } = self.load { in_flight.max(1) } else { 1 };
        (0..at_once.min(self.queries)).for_each(|_| self.schedule(0, Event::Ask));
        let mut now = 0;
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            now = at;
            match event {
                Event::Ask => self.ask(now),
                Event::Ended { slot, task } => self.ended(now, slot, task),
            }
        }
        now
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.events.push(Reverse((at_ns, self.scheduled, event)));
        self.scheduled += 1;
    }

    fn ask(&mut self, now: u64) {
        let number = self.asked;
        if number == self.queries {
            return;
        }
        self.asked += 1;
        if number == self.window.0 {
            self.marks[0] = self.mark(now);
        }
        if number == self.window.1 {
            self.marks[1] = self.mark(now);
        }
        self.begin(now, number);
        if let Load::Open { per_second } = self.load {
            let draw = (hash(self.seed, 41, number as u64) >> 11) as f64 / (1u64 << 53) as f64;
            self.next_ask_ns += -(1.0 - draw).ln() * 1e9 / per_second;
            self.schedule((self.next_ask_ns as u64).max(now), Event::Ask);
        }
    }

    fn begin(&mut self, now: u64, number: usize) {
        let at = number % self.traces.len();
        let trace = &self.traces[at];
        let waits = trace.waits().to_vec();
        let live = Live { trace: at, number, asked_ns: now, left: waits.len(), waits };
        let slot = match self.idle.pop() {
            Some(slot) => {
                self.live[slot] = live;
                slot
            }
            None => {
                self.live.push(live);
                self.live.len() - 1
            }
        };
        for task in (0..trace.tasks().len() as TaskId).filter(|&t| trace.waits()[t as usize] == 0) {
            self.start(now, slot, task);
        }
    }

    /// A task is ready: it takes its place in a line.
    fn start(&mut self, now: u64, slot: usize, task: TaskId) {
        let (server, what) = self.traces[self.live[slot].trace].tasks()[task as usize];
        let costs = self.costs;
        let Some(server) = self.servers.get_mut(usize::from(server)) else { return };
        let ends = match what {
            Task::Think(work) => server.threads.take(now, costs.work_ns(&work)),
            Task::Read => {
                let gap = costs.read_gap_ns();
                server.disk.take(now, gap) - gap + costs.disk_latency_ns.max(gap)
            }
            Task::Send { bytes } => server.out.take(now, costs.sending_ns(bytes)) + costs.network_latency_ns,
        };
        self.schedule(ends, Event::Ended { slot, task });
    }

    fn ended(&mut self, now: u64, slot: usize, task: TaskId) {
        let trace = &self.traces[self.live[slot].trace];
        if task == trace.answered() {
            let live = &self.live[slot];
            self.latency_ns[live.number] = now - live.asked_ns;
            self.answered += 1;
            if let Load::Closed { .. } = self.load {
                self.ask(now);
            }
        }
        for &next in trace.next(task) {
            let waits = &mut self.live[slot].waits[next as usize];
            *waits -= 1;
            if *waits == 0 {
                self.start(now, slot, next);
            }
        }
        let live = &mut self.live[slot];
        live.left -= 1;
        if live.left == 0 {
            self.idle.push(slot);
        }
    }

    fn mark(&self, now: u64) -> Mark {
        let busy = |s: &Server| [s.threads.busy_ns(now), s.disk.busy_ns(now), s.out.busy_ns(now)];
        Mark { at_ns: now, answered: self.answered, busy_ns: self.servers.iter().map(busy).collect() }
    }

    fn timing(self, ended_ns: u64) -> Timing {
        let [from, to] = &self.marks;
        let spent_ns = to.at_ns.saturating_sub(from.at_ns);
        let answered = to.answered.saturating_sub(from.answered);
        let shares = self.servers.iter().zip(from.busy_ns.iter().zip(&to.busy_ns)).map(|(server, (a, b))| {
            let share = |line: &Line, i: usize| line.share((from.at_ns, a[i]), (to.at_ns, b[i]));
            Utilisation {
                cpu: share(&server.threads, 0),
                disk: share(&server.disk, 1),
                network: share(&server.out, 2),
            }
        });
        Timing {
            qps: if spent_ns == 0 { 0.0 } else { answered as f64 * 1e9 / spent_ns as f64 },
            servers: shares.collect(),
            latency_ns: self.latency_ns[self.window.0.min(self.latency_ns.len())..].to_vec(),
            ended_ns,
        }
    }
}

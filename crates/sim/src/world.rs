//! The event loop, and what each event does.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use stratann_core::build::hash;
use stratann_core::peer::message::{Message, decode};
use stratann_core::peer::{Action, Peer, Run, Served};
use stratann_core::place::Here;
use stratann_core::plan::IndexView;
use stratann_core::query::wire::Carry;
use stratann_core::query::{Arrival, Arrived, Loss, QueryState, Scratch, Step, Tag, Want};

use crate::recorder::{Recorder, Sent};
use crate::trace::{Trace, Work};
use crate::{Asked, Blocks, Cluster, Partition, Report, Told, Weather};

const EVENTS_MAX: u64 = 10_000_000;
/// All servers serve the same build.
const BUILD: u64 = 0x5EED;

/// What the servers serve.
#[derive(Clone, Copy)]
pub(crate) enum Setting<'a> {
    /// One index; queries are handed over.
    Together(&'a Cluster<'a>),
    /// An index each; all are asked.
    Apart(&'a [Partition<'a>]),
}

impl<'a> Setting<'a> {
    fn servers(&self) -> usize {
        match self {
            Setting::Together(cluster) => cluster.placement.servers(),
            Setting::Apart(partitions) => partitions.len(),
        }
    }

    /// A bit for every server.
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.servers().clamp(1, 64))
    }

    fn view(&self, server: u8, peer: &Peer) -> IndexView<'a> {
        match self {
            Setting::Together(cluster) => {
                let (live, loads) = (peer.live(), peer.loads());
                let here = Here { placement: cluster.placement, server, live, loads };
                IndexView { here: Some(here), ..cluster.view }
            }
            Setting::Apart(partitions) => partitions[usize::from(server)].view,
        }
    }

    fn blocks(&self, server: u8) -> &'a dyn Blocks {
        match self {
            Setting::Together(cluster) => cluster.blocks,
            Setting::Apart(partitions) => partitions[usize::from(server)].blocks,
        }
    }

    fn served(&self, server: usize, weather: &Weather) -> Served {
        let (view, apart) = match self {
            Setting::Together(cluster) => (&cluster.view, None),
            Setting::Apart(partitions) => (&partitions[server].view, Some(partitions.len() as u8)),
        };
        let (vector_bytes, rescores) = (view.dim * view.dtype.size(), view.rescores());
        let carry = if rescores { weather.carry } else { Carry::Distances };
        let (nodes, results) = (view.nodes, weather.results);
        Served { build: BUILD, vector_bytes, nodes, carry, results, rescores, apart }
    }
}

/// How often a server that holds something looks at the clock, microseconds.
const TICK_US: u64 = 5000;

#[derive(Debug)]
enum Event {
    Ask(usize),
    Frame { from: u8, to: u8, bytes: Vec<u8> },
    Read { server: u8, incarnation: u32, run: Run, tag: Tag, block: u32 },
    Tick { server: u8, incarnation: u32 },
    Crash(u8),
    Restart(u8),
    Notice { server: u8, other: u8, is_up: bool },
}

/// What was read, as a state takes it in; `None` is a read that failed.
pub(crate) fn arrivals(held: &[(Tag, Option<Vec<u8>>)]) -> Vec<Arrival<'_>> {
    held.iter()
        .map(|(tag, bytes)| Arrival {
            tag: *tag,
            what: bytes.as_deref().map_or(Arrived::Lost(Loss::Failed), Arrived::Bytes),
        })
        .collect()
}

/// A state that waits for its reads.
struct Running {
    state: Box<QueryState>,
    scratch: Scratch,
    arrived: Vec<(Tag, Option<u32>)>,
}

struct Server {
    peer: Peer,
    incarnation: u32,
    is_up: bool,
    is_ticking: bool,
    running: BTreeMap<Run, Running>,
}

pub(crate) struct World<'a> {
    setting: Setting<'a>,
    asked: &'a [Asked<'a>],
    weather: &'a Weather,
    servers: Vec<Server>,
    // (time, order of scheduling) → event
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    scheduled: u64,
    drawn: u64,
    now_us: u64,
    recorder: Option<Recorder>,
    report: Report,
}

impl<'a> World<'a> {
    pub(crate) fn new(setting: Setting<'a>, asked: &'a [Asked<'a>], weather: &'a Weather) -> World<'a> {
        let count = setting.servers();
        let server = |s: usize| Server {
            peer: Peer::new(s as u8, 0, setting.served(s, weather), setting.all(), weather.limits),
            incarnation: 0,
            is_up: true,
            is_ticking: false,
            running: BTreeMap::new(),
        };
        let mut world = World {
            setting,
            asked,
            weather,
            servers: (0..count).map(server).collect(),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            scheduled: 0,
            drawn: 0,
            now_us: 0,
            recorder: None,
            report: Report {
                told: vec![Vec::new(); asked.len()],
                reads: vec![0; count],
                ..Report::default()
            },
        };
        asked.iter().enumerate().for_each(|(q, a)| world.schedule(a.at_us, Event::Ask(q)));
        for crash in &weather.crashes {
            world.schedule(crash.at_us, Event::Crash(crash.server));
            if let Some(at) = crash.back_at_us {
                world.schedule(at, Event::Restart(crash.server));
            }
        }
        world
    }

    /// As [`World::run`], and what each query did. Of use in calm weather alone: attempts are not told apart.
    pub(crate) fn record(mut self) -> (Report, Vec<Trace>) {
        self.recorder = Some(Recorder::new(self.asked.len()));
        self.play();
        let traces = self.recorder.take().map_or(Vec::new(), Recorder::finish);
        (self.report, traces)
    }

    pub(crate) fn run(mut self) -> Report {
        self.play();
        self.report
    }

    fn play(&mut self) {
        let mut count = 0;
        while let Some(Reverse((at, number))) = self.queue.pop() {
            count += 1;
            assert!(count < EVENTS_MAX, "seed {}: {EVENTS_MAX} events and no end", self.weather.seed);
            let Some(event) = self.events.remove(&number) else { continue };
            self.now_us = at;
            self.happen(event);
        }
        self.report.ended_us = self.now_us;
        for server in self.servers.iter().filter(|s| s.is_up) {
            let (origins, vectors) = server.peer.held();
            let left = &mut self.report.left;
            *left = (left.0 + origins, left.1 + vectors, left.2 + server.running.len());
        }
    }

    fn schedule(&mut self, at_us: u64, event: Event) {
        self.queue.push(Reverse((at_us, self.scheduled)));
        self.events.insert(self.scheduled, event);
        self.scheduled += 1;
    }

    /// A number from 0 to 1, never 1.
    fn draw(&mut self) -> f64 {
        self.drawn += 1;
        (hash(self.weather.seed, 31, self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn delay(&mut self, (least, most): (u64, u64)) -> u64 {
        least + (self.draw() * (most - least + 1) as f64) as u64
    }

    fn happen(&mut self, event: Event) {
        let mut actions = Vec::new();
        let now = self.now_us;
        let at = match event {
            Event::Ask(q) => {
                let asked = self.asked[q];
                let server = &mut self.servers[usize::from(asked.origin)];
                if !server.is_up {
                    return;
                }
                let what = (asked.params, asked.budget);
                server.peer.ask(now, q as u64, what, asked.vector, asked.time_us, &mut actions);
                if let (Some(recorder), Some(Action::Start { run, .. })) =
                    (&mut self.recorder, actions.first())
                {
                    recorder.asked(run.query, q);
                }
                asked.origin
            }
            Event::Frame { from, to, bytes } => {
                let server = &mut self.servers[usize::from(to)];
                if !server.is_up {
                    return;
                }
                if server.peer.received(now, from, &bytes, &mut actions).is_err() {
                    self.report.refused += 1;
                }
                to
            }
            Event::Read { server, incarnation, run, tag, block } => {
                return self.read(server, incarnation, run, tag, block);
            }
            Event::Tick { server, incarnation } => {
                let s = &mut self.servers[usize::from(server)];
                if !s.is_up || s.incarnation != incarnation {
                    return;
                }
                s.is_ticking = false;
                s.peer.tick(now, &mut actions);
                server
            }
            Event::Crash(server) => return self.crash(server),
            Event::Restart(server) => return self.restart(server),
            Event::Notice { server, other, is_up } => {
                let s = &mut self.servers[usize::from(server)];
                match is_up {
                    true => s.peer.up(other, &mut actions),
                    false => s.peer.down(now, other, &mut actions),
                }
                server
            }
        };
        self.act(at, actions);
    }

    fn act(&mut self, server: u8, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, frame } => self.send(server, to, frame),
                Action::Start { run, state } => self.start(server, run, state),
                Action::Answer { client, state } => self.tell(server, client, Told::Answer(state)),
                Action::Fail { client, why } => self.tell(server, client, Told::Failed(why)),
            }
        }
        self.keep_ticking(server);
    }

    fn tell(&mut self, server: u8, client: u64, what: Told) {
        if let (Some(recorder), Told::Answer(_)) = (&mut self.recorder, &what) {
            recorder.told(client as usize, server);
        }
        self.report.told[client as usize].push((self.now_us, what));
    }

    fn keep_ticking(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        if s.is_up && !s.is_ticking && s.peer.held() != (0, 0) {
            s.is_ticking = true;
            let incarnation = s.incarnation;
            self.schedule(self.now_us + TICK_US, Event::Tick { server, incarnation });
        }
    }

    fn send(&mut self, from: u8, to: u8, frame: Vec<u8>) {
        let message = decode(&frame, BUILD);
        if let (Some(recorder), Ok((message, _))) = (&mut self.recorder, &message) {
            let sent = match message {
                Message::Baton { query, .. } | Message::Answer { query, .. } => Some((query, Sent::Carries)),
                Message::Found { query, .. } => Some((query, Sent::Tells)),
                Message::Release { query } => Some((query, Sent::Releases)),
                Message::Standing { .. } => None,
            };
            if let Some((query, kind)) = sent {
                recorder.sent(query, from, to, kind, frame.len());
            }
        }
        match message {
            Ok((Message::Baton { vector, .. }, _)) => {
                self.report.batons += 1;
                self.report.vector_bytes += vector.len() as u64;
                self.report.baton_bytes += (frame.len() - vector.len()) as u64;
            }
            Ok((Message::Found { .. }, _)) => {
                self.report.found += 1;
                self.report.found_bytes += frame.len() as u64;
            }
            _ => {
                self.report.other_frames += 1;
                self.report.other_bytes += frame.len() as u64;
            }
        }
        let copies = match self.draw() {
            x if x < self.weather.drop => 0,
            x if x < self.weather.drop + self.weather.duplicate => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let at = self.now_us + self.delay(self.weather.link_us);
            self.schedule(at, Event::Frame { from, to, bytes: frame.clone() });
        }
    }

    fn start(&mut self, server: u8, run: Run, state: Box<QueryState>) {
        let view = self.view(server);
        let s = &mut self.servers[usize::from(server)];
        s.peer.set_load(s.running.len() + 1);
        let Some(vector) = s.peer.begin(self.now_us, &run) else { return };
        let mut scratch = Scratch::default();
        scratch.prepare(&view, vector);
        if let Some(recorder) = &mut self.recorder {
            recorder.worked(&run.query, &Work { prepared: 1, ..Work::default() });
        }
        s.running.insert(run, Running { state, scratch, arrived: Vec::new() });
        self.advance(server, run);
    }

    fn view(&self, server: u8) -> IndexView<'a> {
        self.setting.view(server, &self.servers[usize::from(server)].peer)
    }

    /// Steps a state with what has arrived for it.
    fn advance(&mut self, server: u8, run: Run) {
        let view = self.view(server);
        let blocks = self.setting.blocks(server);
        let s = &mut self.servers[usize::from(server)];
        let Some(running) = s.running.get_mut(&run) else { return };
        let read = |(tag, block): (Tag, Option<u32>)| {
            let mut bytes = Vec::new();
            let is_read = block.is_some_and(|b| blocks.read(b, &mut bytes));
            (tag, is_read.then_some(bytes))
        };
        let held: Vec<(Tag, Option<Vec<u8>>)> = running.arrived.drain(..).map(read).collect();
        let arrivals: Vec<Arrival<'_>> = arrivals(&held);
        let before = *running.state.stats();
        let step = running.state.step(&view, &mut running.scratch, &arrivals);
        if let Some(recorder) = &mut self.recorder {
            recorder.worked(&run.query, &Work::step(&before, running.state.stats(), arrivals.len()));
        }
        if step != Step::Wait {
            let Some(running) = s.running.remove(&run) else { return };
            let mut actions = Vec::new();
            s.peer.stepped(self.now_us, run, step, &running.state, &mut actions);
            return self.act(server, actions);
        }
        let incarnation = s.incarnation;
        let wants: Vec<(Tag, u32)> =
            running.state.wants().iter().map(|&Want::Fetch { tag, block, .. }| (tag, block)).collect();
        if let Some(recorder) = &mut self.recorder {
            recorder.reads(&run.query, server, wants.len());
        }
        for (tag, block) in wants {
            assert!(view.here.is_none_or(|h| h.holds(block)), "block {block} is not on server {server}");
            self.report.reads[usize::from(server)] += 1;
            let at = self.now_us + self.delay(self.weather.disk_us);
            self.schedule(at, Event::Read { server, incarnation, run, tag, block });
        }
    }

    fn read(&mut self, server: u8, incarnation: u32, run: Run, tag: Tag, block: u32) {
        let fails = self.weather.failing_reads > 0.0 && self.draw() < self.weather.failing_reads;
        let fails = fails || self.is_bad(server, block);
        let s = &mut self.servers[usize::from(server)];
        if s.incarnation != incarnation || !s.is_up {
            return;
        }
        let Some(running) = s.running.get_mut(&run) else { return };
        self.report.lost_reads += u64::from(fails);
        running.arrived.push((tag, (!fails).then_some(block)));
        if running.state.is_ready(running.arrived.len()) {
            self.advance(server, run);
        }
    }

    /// Whether a server can never read this block.
    fn is_bad(&self, server: u8, block: u32) -> bool {
        let drawn = hash(self.weather.seed, 32, u64::from(block)) >> 11;
        let is_in = |share: f64| (drawn as f64) < share * (1u64 << 53) as f64;
        self.weather.bad_disks.iter().any(|&(bad, share)| bad == server && is_in(share))
    }

    fn crash(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        s.is_up = false;
        s.running.clear();
        self.announce(server, false);
    }

    fn restart(&mut self, server: u8) {
        let s = &mut self.servers[usize::from(server)];
        s.incarnation += 1;
        s.is_up = true;
        s.is_ticking = false;
        s.running.clear();
        s.peer = Peer::new(
            server,
            s.incarnation,
            self.setting.served(usize::from(server), self.weather),
            self.setting.all(),
            self.weather.limits,
        );
        self.announce(server, true);
    }

    /// The others notice, each a little later than the change.
    fn announce(&mut self, server: u8, is_up: bool) {
        for other in (0..self.servers.len() as u8).filter(|&o| o != server) {
            let at = self.now_us + self.weather.notice_us + self.delay((0, 500));
            self.schedule(at, Event::Notice { server: other, other: server, is_up });
        }
    }
}

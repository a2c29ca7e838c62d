//! Costs of messages to each other server, measured over connections of their own while the servers run.
//!
//! The dialing server sends requests, short and long, and waits for the reply to each. The time of its own thread
//! counts: work of other threads does not make a message dearer. Of a few rounds the least counts.
//!
//! | sender | bytes | content |
//! |---|---|---|
//! | the dialing server | 4 | bytes that follow, [`LONG`] at most |
//! | | … | anything |
//! | the dialed server | [`SHORT`] | zeros |

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use stratann_core::peer::message::MEASURED_VERSION;

use super::dial;
use super::greeting;
use super::inbound::Place;
use super::secure::Wire;
use super::{LinkState, PeerState, lock};
use crate::budget::thread_cpu_ns;

/// Bytes of a reply and of a short request, and of a long one.
const SHORT: usize = 64;
const LONG: usize = 64 << 10;
/// Measurements at a time that a server answers; others are tried again.
const ANSWERED_MAX: usize = 2;
/// Measurements at a time in which a server takes part.
pub const MEASUREMENTS_MAX: u64 = ANSWERED_MAX as u64 + 1;
/// Memory of a server for one of them.
pub const MEASURING_BYTES: u64 = LONG as u64 + 4;
/// Rounds of a measurement, and round trips of each length in a round.
const ROUNDS: usize = 5;
const SHORT_TRIPS: usize = 20;
const LONG_TRIPS: usize = 2;
/// A slow link has as many round trips as fit, one of each length at least.
const TIME: Duration = Duration::from_millis(200);
/// Time after which a measurement has failed, and after which the other side closes.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Measurements that are kept: one of them may be far off.
const KEPT: usize = 3;
/// Pause between measurements, of any server, unless they are asked for more often.
const PAUSE: Duration = Duration::from_millis(200);

/// Costs of messages to one server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCosts {
    /// Microseconds of a short message on its way.
    pub latency_us: f64,
    /// Bandwidth, gigabits a second.
    pub gbps: f64,
    /// Nanoseconds of processor time that a short message takes, of both servers.
    pub message_ns: f64,
    /// Nanoseconds of processor time of each byte more, of both servers.
    pub byte_ns: f64,
}

impl LinkCosts {
    /// Nanoseconds of each byte more, of the processors or of the wire, whichever takes longer.
    pub fn slower_byte_ns(&self) -> f64 {
        self.byte_ns.max(8.0 / self.gbps)
    }

    /// Of each figure of the wire the median. Of processor time the least: other programs make a message dearer, never
    /// cheaper.
    fn of_last(last: &VecDeque<LinkCosts>) -> Option<LinkCosts> {
        let sorted = |figure: fn(&LinkCosts) -> f64| {
            let mut sorted: Vec<f64> = last.iter().map(figure).collect();
            sorted.sort_by(f64::total_cmp);
            sorted
        };
        let median = |figure| {
            let sorted = sorted(figure);
            sorted.get(sorted.len().saturating_sub(1) / 2).copied()
        };
        Some(LinkCosts {
            latency_us: median(|costs| costs.latency_us)?,
            gbps: median(|costs| costs.gbps)?,
            message_ns: *sorted(|costs| costs.message_ns).first()?,
            byte_ns: *sorted(|costs| costs.byte_ns).first()?,
        })
    }
}

/// The last measurements of the links to all servers.
pub(super) struct Costs {
    of_servers: Mutex<Vec<Measurements>>,
    // Measurements of others that are answered now.
    answered: Arc<AtomicUsize>,
}

#[derive(Clone, Default)]
struct Measurements {
    last: VecDeque<LinkCosts>,
    attempted: Option<Instant>,
}

impl Costs {
    pub(super) fn new(servers: usize) -> Costs {
        Costs { of_servers: Mutex::new(vec![Measurements::default(); servers]), answered: Arc::default() }
    }

    pub(super) fn all(&self) -> Vec<Option<LinkCosts>> {
        lock(&self.of_servers).iter().map(|own| LinkCosts::of_last(&own.last)).collect()
    }

    /// The server whose turn it is, of those that can be measured. What is known of others is dropped.
    fn next(&self, are_measurable: &[bool], every: Duration) -> Option<u8> {
        let mut all = lock(&self.of_servers);
        let mut next: Option<(Option<Instant>, usize)> = None;
        for (server, (own, is_measurable)) in all.iter_mut().zip(are_measurable).enumerate() {
            if !is_measurable {
                *own = Measurements::default();
                continue;
            }
            // The first ones follow each other.
            let pause = if own.last.len() < KEPT { every.min(PAUSE) } else { every };
            let is_due = own.attempted.is_none_or(|at| at.elapsed() >= pause);
            if is_due && next.is_none_or(|(oldest, _)| own.attempted < oldest) {
                next = Some((own.attempted, server));
            }
        }
        let (_, server) = next?;
        all[server].attempted = Some(Instant::now());
        Some(server as u8)
    }

    fn note(&self, server: u8, costs: LinkCosts) {
        let last = &mut lock(&self.of_servers)[usize::from(server)].last;
        last.push_back(costs);
        if last.len() > KEPT {
            last.pop_front();
        }
    }
}

/// Measures the links to all servers that answer, one after the other, each once per `every`, until the link stops.
pub(super) fn run(state: &LinkState, every: Duration, stopping: &Receiver<()>) {
    while stopping.recv_timeout(every.min(PAUSE)) == Err(RecvTimeoutError::Timeout) {
        let is_measurable = |peer: &PeerState| {
            peer.is_up && peer.outbound.is_some_and(|agreed| agreed.frames >= MEASURED_VERSION)
        };
        // Not while the costs are locked: a change of a server holds this lock, and waits for those who ask for costs.
        let are_measurable: Vec<bool> = lock(&state.peers).iter().map(is_measurable).collect();
        let Some(server) = state.costs.next(&are_measurable, every) else { continue };
        // The connection for frames says why a server cannot be reached.
        if let Ok(costs) = measure(state, server) {
            state.costs.note(server, costs);
        }
    }
}

fn measure(state: &LinkState, server: u8) -> io::Result<LinkCosts> {
    let address = state.address_of(server);
    let connection = dial::connect(state, server, &address, greeting::dial_to_measure)
        .map_err(|why| io::Error::other(why.to_string()))?;
    let (mut wire, number) = (connection.wire, connection.number);
    wire.begin_exchange(TIME_MAX);
    let measured = costs_of(&mut wire);
    state.open.unregister(number);
    measured
}

/// Nanoseconds of a round trip: by the clock, and of this thread.
#[derive(Clone, Copy)]
struct Trip {
    clock_ns: f64,
    thread_ns: f64,
}

fn costs_of(wire: &mut Wire) -> io::Result<LinkCosts> {
    let (started, mut bytes) = (Instant::now(), vec![0u8; 4 + LONG]);
    let mut least = [Trip { clock_ns: f64::INFINITY, thread_ns: f64::INFINITY }; 2];
    for round in 0..ROUNDS {
        for (least, (length, trips)) in least.iter_mut().zip([(SHORT, SHORT_TRIPS), (LONG, LONG_TRIPS)]) {
            if round > 0 && started.elapsed() > TIME {
                break;
            }
            let trip = trip(wire, &mut bytes[..4 + length], trips)?;
            least.clock_ns = least.clock_ns.min(trip.clock_ns);
            least.thread_ns = least.thread_ns.min(trip.thread_ns);
        }
    }
    let [short, long] = least;
    let each = |long: f64, short: f64| (long - short).max(0.0) / (LONG - SHORT) as f64;
    Ok(LinkCosts {
        latency_us: short.clock_ns / 2000.0,
        // Keeps the figure finite.
        gbps: 8.0 / each(long.clock_ns, short.clock_ns).max(1e-3),
        // This server's share of two messages is both shares of one.
        message_ns: short.thread_ns,
        byte_ns: 2.0 * each(long.thread_ns, short.thread_ns),
    })
}

/// The mean of so many round trips with this request, fewer where they take long.
fn trip(wire: &mut Wire, request: &mut [u8], trips: usize) -> io::Result<Trip> {
    let length = request.len() as u32 - 4;
    request[..4].copy_from_slice(&length.to_le_bytes());
    let (started, started_ns, mut reply) = (Instant::now(), thread_cpu_ns(), [0; SHORT]);
    let mut done = 0;
    while done < trips && (done == 0 || started.elapsed() < TIME / 4) {
        wire.write_all(request)?;
        wire.flush()?;
        wire.read_exact(&mut reply)?;
        done += 1;
    }
    let thread_ns = thread_cpu_ns().saturating_sub(started_ns);
    Ok(Trip {
        clock_ns: started.elapsed().as_nanos() as f64 / done as f64,
        thread_ns: thread_ns as f64 / done as f64,
    })
}

/// A connection over which another server measures. Dropping it closes it.
pub(super) struct Measured {
    link: Arc<LinkState>,
    // Among the connections of the link.
    number: u64,
    wire: Wire,
    // Among all connections, and among measurements.
    places: Vec<Place>,
}

impl Measured {
    /// `place` is that among all connections. `None` where too many are answered, and once the link has stopped.
    pub(super) fn begin(link: &Arc<LinkState>, wire: Wire, place: Place) -> Option<Measured> {
        let own = Place::take(&link.costs.answered, ANSWERED_MAX)?;
        wire.socket().set_nonblocking(false).ok()?;
        // The link closes it when it stops.
        let number = link.begin_receiving(wire.socket())?;
        Some(Measured { link: link.clone(), number, wire, places: vec![place, own] })
    }

    /// Replies on a thread of its own. Where there is none, the connection is closed.
    pub(super) fn answer_on_thread(mut self) {
        let _ = std::thread::Builder::new().spawn(move || self.answer());
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; LONG];
        self.wire.begin_exchange(TIME_MAX);
        loop {
            let mut length = [0; 4];
            self.wire.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            let request = bytes.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
            self.wire.read_exact(request)?;
            self.wire.write_all(&[0; SHORT])?;
            self.wire.flush()?;
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        // Whoever sees the end finds room.
        self.places.clear();
        let _ = self.wire.socket().shutdown(Shutdown::Both);
        self.link.end_receiving(self.number);
    }
}

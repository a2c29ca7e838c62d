//! The open connections of clients: what each is doing, and which of them gives way to a new one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stratann_storage::ledger::{Ledger, Part, Reservation};
use stratann_storage::link::client_of;
use tokio::sync::Notify;

use crate::limits::{CONNECTION_BYTES, Limits, RESERVED_CONNECTIONS};

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// The connection is open, and nothing has arrived.
    Silent = 0,
    /// A part of a request's header has arrived.
    Header = 1,
    /// A body is arriving.
    Body = 2,
    /// A request is being answered.
    Answering = 3,
    /// An answer is being sent.
    Sending = 4,
    /// The connection waits for another request.
    Idle = 5,
}

impl Phase {
    const ALL: [Phase; 6] =
        [Phase::Silent, Phase::Header, Phase::Body, Phase::Answering, Phase::Sending, Phase::Idle];
}

/// Phase of one connection, its begin, and the order to close it.
pub(crate) struct Activity {
    opened: Instant,
    // The phase in the lowest byte, above it the milliseconds from `opened` to its beginning.
    now: AtomicU64,
    close: Notify,
    /// The number of its client, who takes turns with others.
    pub(crate) client: u64,
    /// Whether it gets health and status alone.
    pub(crate) is_reserved: bool,
}

impl Activity {
    fn new(client: u64, is_reserved: bool) -> Arc<Activity> {
        let (opened, now) = (Instant::now(), AtomicU64::new(0));
        Arc::new(Activity { opened, now, close: Notify::new(), client, is_reserved })
    }

    /// A phase begins.
    pub(crate) fn begin(&self, phase: Phase) {
        let since_ms = self.opened.elapsed().as_millis() as u64;
        self.now.store(since_ms << 8 | phase as u64, Ordering::Relaxed);
    }

    /// Bytes have arrived: outside of a request they are its header.
    pub(crate) fn received(&self) {
        if matches!(self.phase().0, Phase::Silent | Phase::Idle) {
            self.begin(Phase::Header);
        }
    }

    /// All that was written is sent: an answer has ended.
    pub(crate) fn flushed(&self) {
        if self.phase().0 == Phase::Sending {
            self.begin(Phase::Idle);
        }
    }

    /// The phase, and how long it lasts.
    fn phase(&self) -> (Phase, Duration) {
        let now = self.now.load(Ordering::Relaxed);
        let lasts = self.opened.elapsed().saturating_sub(Duration::from_millis(now >> 8));
        (Phase::ALL[(now & 0xff) as usize % Phase::ALL.len()], lasts)
    }

    /// Waits for the order to close the connection.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }
}

/// All open connections.
pub(crate) struct Connections {
    limits: Limits,
    ledger: Arc<Ledger>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Open>,
    clients: HashMap<u64, usize>,
    reserved: usize,
}

struct Open {
    activity: Arc<Activity>,
    _memory: Reservation,
}

/// Time within which a connection in a reserved place must send its header.
const RESERVED_HEADER_TIME: Duration = Duration::from_secs(1);
/// A connection without a request counts as idle for so many times its age: a burst of them does not displace clients
/// that pause between two requests.
const SILENT_WEIGHT: u32 = 20;
/// An answer that is not sent for this long gives way to a new connection.
const STUCK_TIME: Duration = Duration::from_secs(1);
/// Time for bodies and answers under way once the front stops.
pub(crate) const STOP_TIME: Duration = Duration::from_secs(2);

impl Connections {
    pub(crate) fn new(limits: Limits, ledger: &Arc<Ledger>) -> Connections {
        Connections { limits, ledger: Arc::clone(ledger), table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Gives a new connection a place. Where none is free, the one of its client, or of all, that is idle longest
    /// gives way. Where none is idle either, it gets a reserved place. `None` when those are taken, too.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<(u64, Arc<Activity>)> {
        let client = client_of(address);
        let mut table = self.lock();
        let of_client = table.clients.get(&client).copied().unwrap_or(0);
        let is_full = |table: &Table| table.open.len() - table.reserved >= self.limits.connections;
        let mut is_reserved = false;
        if of_client >= self.limits.connections_per_address {
            is_reserved = !table.evict(|open| !open.activity.is_reserved && open.activity.client == client);
        } else if is_full(&table) {
            is_reserved = !table.evict(|open| !open.activity.is_reserved);
        }
        if is_reserved
            && table.reserved >= RESERVED_CONNECTIONS
            && !table.evict(|open| open.activity.is_reserved)
        {
            return None;
        }
        let memory = self.ledger.reserve(Part::Connections, CONNECTION_BYTES as u64)?;
        let activity = Activity::new(client, is_reserved);
        table.next += 1;
        let number = table.next;
        table.open.insert(number, Open { activity: activity.clone(), _memory: memory });
        *table.clients.entry(client).or_default() += usize::from(!is_reserved);
        table.reserved += usize::from(is_reserved);
        Some((number, activity))
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, number: u64) {
        self.lock().remove(number);
    }

    /// Closes the connections that are in a phase for too long. `stopping` is the time since the front stops.
    pub(crate) fn close_late(&self, stopping: Option<Duration>) {
        let limits = &self.limits;
        self.lock().close(|open| {
            let (phase, lasts) = open.activity.phase();
            let header_time =
                if open.activity.is_reserved { RESERVED_HEADER_TIME } else { limits.header_time };
            match phase {
                Phase::Silent | Phase::Header => stopping.is_some() || lasts >= header_time,
                Phase::Idle => lasts >= limits.idle_time,
                Phase::Body | Phase::Sending => stopping.is_some_and(|time| time >= STOP_TIME),
                Phase::Answering => false,
            }
        });
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Open> {
        let open = self.open.remove(&number)?;
        if open.activity.is_reserved {
            self.reserved -= 1;
        } else if let Some(count) = self.clients.get_mut(&open.activity.client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&open.activity.client);
            }
        }
        Some(open)
    }

    /// Closes the connection that does nothing for longest, of those that `may` give way. Returns whether there is one.
    fn evict(&mut self, may: impl Fn(&Open) -> bool) -> bool {
        let idle = |open: &Open| {
            let (phase, lasts) = open.activity.phase();
            match phase {
                Phase::Silent | Phase::Header => Some(lasts * SILENT_WEIGHT),
                Phase::Idle => Some(lasts),
                Phase::Sending => (lasts >= STUCK_TIME).then_some(lasts),
                Phase::Body | Phase::Answering => None,
            }
        };
        let candidates = self.open.iter().filter(|(_, open)| may(open));
        let longest = candidates.filter_map(|(&n, open)| Some((idle(open)?, n))).max_by_key(|c| c.0);
        let Some((_, number)) = longest else { return false };
        if let Some(open) = self.remove(number) {
            open.activity.close.notify_one();
        }
        true
    }

    /// Orders all connections for which `is_late` holds to close.
    fn close(&mut self, is_late: impl Fn(&Open) -> bool) {
        for open in self.open.values().filter(|open| is_late(open)) {
            open.activity.close.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(connections: usize, connections_per_address: usize) -> Connections {
        let limits = Limits { connections, connections_per_address, ..Limits::default() };
        Connections::new(limits, &Ledger::new(None).with_connections())
    }

    trait WithConnections {
        fn with_connections(self) -> Arc<Ledger>;
    }

    impl WithConnections for Arc<Ledger> {
        fn with_connections(self) -> Arc<Ledger> {
            // The guarantee lasts as long as the test.
            std::mem::forget(self.guarantee(Part::Connections, 1 << 20));
            self
        }
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

    #[test]
    fn a_silent_connection_gives_way_and_one_that_is_answered_does_not() {
        let all = connections(2, 2);
        let (first, answered) = all.enter(HERE).unwrap();
        answered.begin(Phase::Answering);
        let (second, _) = all.enter(HERE).unwrap();
        let (third, third_activity) = all.enter(THERE).unwrap();
        let open: Vec<u64> = all.lock().open.keys().copied().collect();
        assert_eq!(open, [first, third]);
        all.leave(second);
        assert_eq!(all.len(), 2);
        third_activity.begin(Phase::Body);
        // Nobody is idle: reserved places for health are left.
        let reserved: Vec<_> = (0..RESERVED_CONNECTIONS).map(|_| all.enter(HERE).unwrap()).collect();
        assert!(reserved.iter().all(|(_, activity)| activity.is_reserved));
        reserved.iter().for_each(|(_, activity)| activity.begin(Phase::Answering));
        assert!(all.enter(HERE).is_none());
        reserved[3].1.begin(Phase::Idle);
        assert!(all.enter(HERE).is_some_and(|(_, activity)| activity.is_reserved));
        all.leave(first);
        assert!(all.enter(HERE).is_some_and(|(_, activity)| !activity.is_reserved));
    }

    #[test]
    fn an_address_has_no_more_than_its_connections() {
        let all = connections(8, 2);
        let (first, _) = all.enter(HERE).unwrap();
        let (second, busy) = all.enter(HERE).unwrap();
        busy.begin(Phase::Answering);
        let (third, busy) = all.enter(HERE).unwrap();
        busy.begin(Phase::Answering);
        assert_eq!(all.lock().open.keys().copied().collect::<Vec<_>>(), [second, third], "{first} gave way");
        assert!(all.enter(HERE).is_some_and(|(_, activity)| activity.is_reserved));
        assert!(all.enter(THERE).is_some_and(|(_, activity)| !activity.is_reserved));
    }
}

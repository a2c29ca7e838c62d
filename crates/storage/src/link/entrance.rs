//! The entrance of a listening socket: whoever connects greets here, before anything else is kept for it.
//!
//! One thread greets all guests and waits for none of them. A guest is a socket and some 300 bytes; under TLS its state
//! begins with its first byte. Where all places are taken, the oldest guest of the address with most of them gives way.
//! So strangers displace each other, and a side that has the key and greets at once is let in.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::greeting::{self, ANSWERED_BYTES, GreetingError, Role, Versions};
use super::secure::{Tls, Wire};
use super::sockets::{self, Watched};
use super::timed::Timed;
use super::{GREETING, Log};

/// Most guests at a time.
const GUESTS_MAX: usize = 512;
/// Connections that are accepted, and guests that are heard, before others have their turn.
const TURN: usize = 16;
/// Time without new connections after one could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Lines of the log in one second.
const LINES_MAX: u32 = 10;

/// The client behind an address. Of IPv6 it is the network, since one client has all addresses of it.
pub fn client_of(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
    }
}

/// Side that guests meet in a greeting.
pub(crate) struct Welcome {
    pub(crate) role: &'static Role,
    pub(crate) versions: Versions,
    /// Certificates for encrypted connections.
    pub(crate) tls: Option<Tls>,
    /// Says why a guest is refused.
    pub(crate) refusal: fn(&GreetingError) -> String,
    pub(crate) log: Log,
}

/// Bytes that are sent to a guest, and the guest that was recognised.
pub(crate) type Judged<T> = (Vec<u8>, Result<T, GreetingError>);

/// A listening socket, and connections that have not greeted yet.
pub(crate) struct Entrance {
    welcome: Welcome,
    listener: TcpListener,
    bell: UnixStream,
    /// The oldest first.
    guests: Vec<Guest>,
    places: usize,
    accept_after: Option<Instant>,
    said: Said,
}

/// Ends the waiting of an [`Entrance`].
pub(crate) struct Bell(UnixStream);

/// An entrance that listens.
pub(crate) struct OpenEntrance {
    pub(crate) entrance: Entrance,
    /// Wakes the thread that waits at the entrance.
    pub(crate) bell: Bell,
    /// The address that it listens on.
    pub(crate) address: SocketAddr,
}

/// A connection whose greeting was accepted.
pub(crate) struct Greeted<T> {
    pub(crate) wire: Wire,
    pub(crate) address: IpAddr,
    /// The result of the judgement.
    pub(crate) who: T,
}

impl Bell {
    pub(crate) fn ring(&self) {
        // A bell that is full of rings is heard.
        let _ = (&self.0).write(&[1]);
    }
}

impl Entrance {
    /// Listens.
    pub(crate) fn open(listen: SocketAddr, welcome: Welcome) -> io::Result<OpenEntrance> {
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        sockets::lengthen_queue(&listener)?;
        let address = listener.local_addr()?;
        let (ringing, bell) = UnixStream::pair()?;
        ringing.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let entrance = Entrance {
            welcome,
            listener,
            bell,
            guests: Vec::new(),
            places: GUESTS_MAX,
            accept_after: None,
            said: Said::default(),
        };
        Ok(OpenEntrance { entrance, bell: Bell(ringing), address })
    }

    /// Descriptors to wait for.
    pub(crate) fn watched(&self, now: Instant) -> Vec<Watched> {
        let accepts = self.accept_after.is_none_or(|after| after <= now);
        let own = [
            sockets::watched(self.bell.as_raw_fd(), true, false),
            sockets::watched(self.listener.as_raw_fd(), accepts, false),
        ];
        let guests = self.guests.iter().map(|guest| sockets::watched(guest.descriptor, true, false));
        own.into_iter().chain(guests).collect()
    }

    /// Time at which to go on at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.guests.iter().map(|guest| guest.deadline).chain(self.accept_after).min()
    }

    /// Accepts connections and hears guests. `judge` takes what was sent to a guest and what it has answered. Returns
    /// who has greeted. `watched` is what [`Entrance::watched`] gave, after the wait.
    pub(crate) fn turn<T>(
        &mut self,
        watched: &[Watched],
        mut judge: impl FnMut(&[u8], &[u8; ANSWERED_BYTES]) -> Judged<T>,
    ) -> Vec<Greeted<T>> {
        if sockets::is_readable(&watched[0]) {
            let _ = self.bell.read(&mut [0; 64]);
        }
        let now = Instant::now();
        let ready = self.ready(&watched[2..]);
        let (mut greeted, mut staying) = (Vec::new(), Vec::with_capacity(self.guests.len()));
        for (number, mut guest) in std::mem::take(&mut self.guests).into_iter().enumerate() {
            let heard = match ready.contains(&number) {
                true => guest.hear(&self.welcome, &mut judge),
                false => Ok(None),
            };
            match heard {
                Ok(None) if guest.deadline > now => staying.push(guest),
                Ok(None) => self.refuse(guest.address, &too_slow()),
                Ok(Some(who)) => {
                    greeted.extend(guest.wire.map(|wire| Greeted { wire, address: guest.address, who }))
                }
                Err(why) => self.refuse(guest.address, &why),
            }
        }
        self.guests = staying;
        self.accept_after = self.accept_after.filter(|after| *after > now);
        if sockets::is_readable(&watched[1]) {
            self.accept(now);
        }
        greeted
    }

    /// Numbers of guests to hear now: first those of addresses with few guests.
    fn ready(&self, watched: &[Watched]) -> Vec<usize> {
        let all = self.guests.iter().zip(watched).enumerate();
        let mut ready: Vec<usize> =
            all.filter(|(_, (_, watched))| sockets::is_readable(watched)).map(|(number, _)| number).collect();
        if ready.len() > TURN {
            let guests = self.guests_of_clients();
            ready.sort_by_key(|&number| guests[&self.guests[number].client]);
            ready.truncate(TURN);
        }
        ready
    }

    fn guests_of_clients(&self) -> HashMap<u64, usize> {
        let mut all = HashMap::new();
        self.guests.iter().for_each(|guest| *all.entry(guest.client).or_default() += 1);
        all
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..TURN {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                // Perhaps out of descriptors: a guest has one.
                Err(_) if self.give_way(None) => continue,
                Err(e) => {
                    self.log(format!("accepting a connection failed: {e}"));
                    self.accept_after = Some(now + ACCEPT_PAUSE);
                    return;
                }
            };
            self.enter(stream, from.ip(), now);
        }
    }

    /// Gives a connection a place.
    fn enter(&mut self, stream: TcpStream, from: IpAddr, now: Instant) {
        if self.guests.len() >= self.places {
            self.give_way(Some(client_of(from)));
        }
        match Guest::new(stream, from, now, &self.welcome) {
            Ok(guest) => self.guests.push(guest),
            Err(e) => self.refuse(from, &e.into()),
        }
    }

    /// Closes the oldest guest of the address that has most, the waiting one counted. Returns whether there is one.
    fn give_way(&mut self, waiting: Option<u64>) -> bool {
        let mut all = self.guests_of_clients();
        waiting.into_iter().for_each(|client| *all.entry(client).or_default() += 1);
        let most = self.guests.iter().map(|guest| all[&guest.client]).max();
        let oldest = self.guests.iter().position(|guest| Some(all[&guest.client]) == most);
        oldest.map(|number| self.guests.remove(number)).is_some()
    }

    fn refuse(&mut self, from: IpAddr, why: &GreetingError) {
        // Who hangs up before it greets is no event.
        if !matches!(why, GreetingError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof) {
            self.log(format!("connection from {from} refused: {}", (self.welcome.refusal)(why)));
        }
    }

    /// Logs a line, unless it repeats or there are too many.
    pub(crate) fn log(&mut self, line: String) {
        if let Some(line) = self.said.next(line, Instant::now()) {
            (self.welcome.log)(&line);
        }
    }
}

/// Last message that was logged.
#[derive(Default)]
struct Said {
    last: String,
    since: Option<Instant>,
    lines: u32,
}

impl Said {
    /// The line to log; `None` where it repeats the last one, or this second has its lines.
    fn next(&mut self, line: String, now: Instant) -> Option<String> {
        if line == self.last {
            return None;
        }
        if self.since.is_none_or(|since| now.duration_since(since) >= Duration::from_secs(1)) {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines += 1;
        match self.lines.cmp(&LINES_MAX) {
            std::cmp::Ordering::Less => {
                self.last.clone_from(&line);
                Some(line)
            }
            std::cmp::Ordering::Equal => Some("more connections are refused in this second".into()),
            std::cmp::Ordering::Greater => None,
        }
    }
}

fn too_slow() -> GreetingError {
    io::Error::new(io::ErrorKind::TimedOut, "the greeting took too long").into()
}

/// A connection that has not greeted.
struct Guest {
    descriptor: std::os::fd::RawFd,
    address: IpAddr,
    client: u64,
    deadline: Instant,
    /// `None` before the first byte under TLS.
    wire: Option<Wire>,
    stream: Option<TcpStream>,
    opening: Vec<u8>,
    sent: usize,
    received: [u8; ANSWERED_BYTES],
    have: usize,
}

impl Guest {
    fn new(stream: TcpStream, address: IpAddr, now: Instant, welcome: &Welcome) -> io::Result<Guest> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut guest = Guest {
            descriptor: stream.as_raw_fd(),
            address,
            client: client_of(address),
            deadline: now + GREETING,
            wire: None,
            stream: Some(stream),
            opening: Vec::new(),
            sent: 0,
            received: [0; ANSWERED_BYTES],
            have: 0,
        };
        // Under TLS the other side begins.
        if welcome.tls.is_none() {
            guest.begin(welcome)?;
            guest.send()?;
        }
        Ok(guest)
    }

    fn begin(&mut self, welcome: &Welcome) -> io::Result<()> {
        if let Some(stream) = self.stream.take() {
            self.opening = greeting::opening(welcome.role, welcome.versions)?;
            self.wire = Some(Wire::accept(welcome.tls.as_ref(), Timed::new(stream, GREETING)?)?);
        }
        Ok(())
    }

    /// Sends what it can of the opening.
    fn send(&mut self) -> io::Result<()> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        while self.sent < self.opening.len() {
            match wire.write(&self.opening[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        match wire.flush() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }

    /// Takes what has come. Returns who it is once it has greeted.
    fn hear<T>(
        &mut self,
        welcome: &Welcome,
        mut judge: impl FnMut(&[u8], &[u8; ANSWERED_BYTES]) -> Judged<T>,
    ) -> Result<Option<T>, GreetingError> {
        self.begin(welcome)?;
        self.send()?;
        let Some(wire) = &mut self.wire else { return Ok(None) };
        while self.have < ANSWERED_BYTES {
            match wire.read(&mut self.received[self.have..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => self.have += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    // Under TLS the opening goes out once both sides agree on keys.
                    self.send()?;
                    return Ok(None);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
            greeting::check_start(welcome.role, &self.received[..self.have])?;
        }
        let (reply, verdict) = judge(&self.opening, &self.received);
        // The first bytes after the opening find room, so what does not is refused.
        wire.write_all(&reply)?;
        wire.flush()?;
        let who = verdict?;
        wire.end_greeting()?;
        Ok(Some(who))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| client_of(text.parse().unwrap());
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    const SECRET: &[u8] = b"a secret";

    fn entrance(places: usize) -> (Entrance, Bell, SocketAddr) {
        let welcome = Welcome {
            role: &greeting::PEERS,
            versions: Versions::default(),
            tls: None,
            refusal: ToString::to_string,
            log: std::sync::Arc::new(|_| {}),
        };
        let OpenEntrance { entrance, bell, address } =
            Entrance::open("127.0.0.1:0".parse().unwrap(), welcome).unwrap();
        (Entrance { places, ..entrance }, bell, address)
    }

    fn identity(server: u8) -> greeting::Identity<'static> {
        greeting::Identity { server, servers: 2, build: 7, secret: SECRET, versions: Versions::default() }
    }

    /// Turns until nothing comes any more. Returns the servers that were let in.
    fn turns(entrance: &mut Entrance) -> Vec<u8> {
        let mut greeted = Vec::new();
        loop {
            let mut watched = entrance.watched(Instant::now());
            sockets::wait(&mut watched, Some(Duration::from_millis(50))).unwrap();
            if watched.iter().all(|watched| watched.revents == 0) {
                return greeted;
            }
            let found = entrance.turn(&watched, |opening, received| {
                let own = (7, Versions::default());
                greeting::judge(&greeting::PEERS, SECRET, (opening, received), own, |_| {
                    Some((identity(0), ()))
                })
            });
            greeted.extend(found.into_iter().map(|guest| guest.who.0.server));
        }
    }

    /// A connection that seems to come from an address.
    fn connect(from: [u8; 4], entrance: &mut Entrance) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        entrance.enter(listener.accept().unwrap().0, from.into(), Instant::now());
        dialed
    }

    #[test]
    fn a_flood_from_one_address_displaces_itself() {
        let (mut entrance, _bell, _) = entrance(8);
        let slow = connect([10, 0, 0, 2], &mut entrance);
        let flood: Vec<TcpStream> = (0..100).map(|_| connect([10, 0, 0, 1], &mut entrance)).collect();
        assert_eq!(entrance.guests.len(), 8);
        // One that is slow, from elsewhere, has kept its place. One from the same address is heard in time, too.
        for mut honest in [slow, connect([10, 0, 0, 1], &mut entrance)] {
            let dialing = std::thread::spawn(move || {
                greeting::dial(&identity(1), 0, &mut honest).unwrap();
            });
            let mut greeted = Vec::new();
            while greeted.is_empty() && !dialing.is_finished() {
                greeted = turns(&mut entrance);
            }
            assert_eq!(greeted, [1]);
            dialing.join().unwrap();
        }
        drop(flood);
    }

    #[test]
    fn a_wrong_first_byte_ends_a_greeting() {
        let (mut entrance, _bell, address) = entrance(8);
        let mut strangers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert!(turns(&mut entrance).is_empty());
        strangers[1].write_all(b"GET").unwrap();
        assert!(turns(&mut entrance).is_empty());
        assert_eq!(entrance.guests.len(), 2);
        strangers[1].set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let end = strangers[1].read_to_end(&mut Vec::new());
        assert!(!end.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock), "it is closed");
    }

    #[test]
    fn a_flood_writes_few_lines() {
        let (mut said, now) = (Said::default(), Instant::now());
        let lines = (0..1000).filter_map(|n| said.next(format!("line {n}"), now)).count();
        assert_eq!(lines, LINES_MAX as usize);
        assert!(said.next("line 0".into(), now + Duration::from_secs(1)).is_some());
        assert!(said.next("line 0".into(), now + Duration::from_secs(9)).is_none(), "it repeats");
    }
}

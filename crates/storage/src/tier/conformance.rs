//! Duties of every tier; each one runs this in its tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use stratann_core::PAGE;

use super::{Buffer, Completion, FileId, Tier};

/// Bytes that a tier under test must serve: `pages` whole pages and a part of one, each page telling its number.
pub fn sample(pages: usize) -> Vec<u8> {
    (0..pages * PAGE + 100).map(|i| ((i / PAGE) * 31 + i % 251) as u8).collect()
}

/// Runs the contract against a tier that serves [`sample`]`(pages)`; `depth` is what it was opened with.
///
/// # Panics
/// When the tier breaks the contract.
pub fn check(tier: &mut dyn Tier, pages: usize, depth: usize) {
    let bytes = sample(pages);
    assert!(tier.room() >= depth, "room for what was asked");
    assert_eq!(tier.file_bytes(FileId(0)), Some(bytes.len() as u64));
    assert_eq!(tier.file_bytes(FileId(1)), None);
    let mut done = Vec::new();
    tier.poll(true, &mut done).expect("polling an idle tier returns at once");
    assert!(done.is_empty());

    let mut own = tier.buffers();
    assert!(tier.buffers().is_empty(), "a buffer is given once");
    let mut awaited: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut seen = 0;
    for round in 0..200usize {
        let (page, size) = ((round * 7919) % (pages + 2), 1 + round % 3);
        while tier.room() == 0 {
            collect(tier, true, &bytes, &mut awaited, &mut seen);
        }
        let room = tier.room();
        awaited.insert(round as u64, (page, size));
        // One-page reads go through the tier's own buffers where it has some.
        let buffer = if size == 1 { own.pop() } else { None }.unwrap_or_else(|| Buffer::new(size * PAGE));
        tier.submit(round as u64, FileId(0), (page * PAGE) as u64, buffer);
        assert_eq!(tier.room(), room - 1);
        collect(tier, false, &bytes, &mut awaited, &mut seen);
    }
    while !awaited.is_empty() {
        let before = seen;
        collect(tier, true, &bytes, &mut awaited, &mut seen);
        assert!(seen > before, "waiting brings something");
    }
    assert_eq!(seen, 200);
}

/// Runs the contract of [`Tier::waker`] against a tier that serves [`sample`] and has nothing under way.
///
/// # Panics
/// When the tier breaks the contract. One that never wakes hangs.
pub fn check_waker(tier: &mut dyn Tier) {
    let waker = tier.waker().expect("this tier can be woken");
    let mut done = Vec::new();
    // Before the wait, and several at once.
    waker.wake();
    waker.wake();
    tier.poll(true, &mut done).expect("the tier works");
    assert!(done.is_empty(), "a wake brings no bytes");
    for round in 0..100u64 {
        let other = waker.clone();
        let from_afar = std::thread::spawn(move || other.wake());
        // A read under way may end the wait too.
        let reads = round % 2;
        if reads == 1 {
            tier.submit(round, FileId(0), 0, Buffer::new(PAGE));
        }
        let mut came = 0;
        while came < reads as usize {
            tier.poll(true, &mut done).expect("the tier works");
            came = done.len();
        }
        from_afar.join().expect("waking does not fail");
        done.clear();
        // Whether or not the wake was seen among the reads, one more ends a wait with nothing under way.
        waker.wake();
        tier.poll(true, &mut done).expect("the tier works");
        assert!(done.is_empty());
    }
}

/// Runs the contract of [`Tier::receive`] against a tier that serves [`sample`] and reads sockets.
///
/// # Panics
/// When the tier breaks the contract.
pub fn check_receive(tier: &mut dyn Tier) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let far = Arc::new(listener.accept().expect("a connection").0);
    let (tag, room) = (1 << 40, tier.room());
    let mut done = Vec::new();
    for round in 1..20usize {
        assert!(tier.receive(tag, &far, Buffer::new(PAGE)).is_ok());
        assert_eq!(tier.room(), room, "a socket takes no room");
        // A read of a file does not wait for the socket.
        tier.submit(1, FileId(0), 0, Buffer::new(PAGE));
        while done.is_empty() {
            tier.poll(true, &mut done).expect("the tier works");
        }
        assert!(done.drain(..).all(|completion| completion.tag == 1));
        near.write_all(&vec![round as u8; round]).expect("room for some bytes");
        while done.is_empty() {
            tier.poll(true, &mut done).expect("the tier works");
        }
        let Completion { tag: of_socket, buffer, result } = done.pop().expect("a completion");
        assert_eq!((of_socket, result.expect("bytes")), (tag, round));
        assert!(buffer.bytes()[..round].iter().all(|&byte| byte == round as u8));
    }
    assert!(tier.receive(tag, &far, Buffer::new(PAGE)).is_ok());
    drop(near);
    tier.poll(true, &mut done).expect("the tier works");
    assert!(matches!(done.pop(), Some(Completion { result: Ok(0), .. })), "the end of the stream");
}

fn collect(
    tier: &mut dyn Tier,
    wait: bool,
    bytes: &[u8],
    awaited: &mut BTreeMap<u64, (usize, usize)>,
    seen: &mut usize,
) {
    let mut done = Vec::new();
    tier.poll(wait, &mut done).expect("the tier works");
    for completion in done {
        let (page, size) = awaited.remove(&completion.tag).expect("each tag comes back once");
        let start = (page * PAGE).min(bytes.len());
        let expected = &bytes[start..(start + size * PAGE).min(bytes.len())];
        let count = completion.result.expect("no read fails");
        assert_eq!(count, expected.len(), "a read past the end is short, not an error");
        assert_eq!(&completion.buffer.bytes()[..count], expected);
        assert_eq!(completion.buffer.len(), size * PAGE);
        *seen += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{IoChoice, MemoryTier, open_direct, open_file};
    use super::*;

    fn file() -> (tempfile::TempDir, Arc<std::fs::File>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, sample(20)).unwrap();
        let (file, _) = open_direct(&path).unwrap();
        (folder, Arc::new(file))
    }

    #[test]
    fn memory_conforms_under_any_order() {
        for seed in 0..20 {
            check(&mut MemoryTier::new(Arc::new(sample(20)), 8, seed), 20, 8);
        }
    }

    #[test]
    fn pread_conforms() {
        let (_folder, file) = file();
        for depth in [1, 5, 64] {
            let mut tier = open_file(&file, depth, PAGE, IoChoice::Pread).unwrap();
            check(tier.as_mut(), 20, depth);
            check_waker(tier.as_mut());
        }
    }

    #[test]
    fn io_uring_conforms_where_it_is_allowed() {
        if let Some(why) = super::super::uring_refusal() {
            stratann_testing::leave_out(stratann_testing::Need::IoUring, &why);
            return;
        }
        let (_folder, file) = file();
        for depth in [1, 5, 64] {
            let mut tier = open_file(&file, depth, PAGE, IoChoice::Uring).unwrap();
            check_receive(tier.as_mut());
            check(tier.as_mut(), 20, depth);
            check_waker(tier.as_mut());
            check_receive(tier.as_mut());
        }
    }
}

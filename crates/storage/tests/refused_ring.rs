//! A ring of io_uring that must not be entered: from the beginning, or from some moment on, as the profiles of some
//! containers have it.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

use std::sync::Arc;

use stratann_core::PAGE;
use stratann_storage::tier::{Buffer, FileId, IoChoice, Tier, open_direct, open_file, uring_refusal};
use stratann_testing::{Need, leave_out};

/// Refuses a system call to this thread from now on, as the profile of a container does.
fn refuse(call: libc::c_long, error: i32) {
    let op = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter lives until the calls return; it holds for this thread alone.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_ring_that_must_not_be_entered_is_replaced_by_pread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let bytes: Vec<u8> = (0..3 * PAGE).map(|i| (i / 7) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    for error in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
        let (path, bytes) = (path.clone(), bytes.clone());
        // The filter holds for this thread and those that it starts.
        let thread = std::thread::spawn(move || {
            refuse(libc::SYS_io_uring_enter, error);
            let file = Arc::new(open_direct(&path).unwrap().0);
            assert!(uring_refusal().is_some_and(|why| why.contains("seccomp")));
            assert!(open_file(&file, 4, PAGE, IoChoice::Uring).is_err());
            let mut tier = open_file(&file, 4, PAGE, IoChoice::Auto).unwrap();
            assert_eq!(tier.name(), "pread");
            let mut done = Vec::new();
            tier.submit(7, FileId(0), PAGE as u64, Buffer::new(PAGE));
            tier.start().unwrap();
            while done.is_empty() {
                tier.poll(true, &mut done).unwrap();
            }
            assert_eq!((done[0].tag, done[0].result.as_ref().unwrap()), (7, &PAGE));
            assert_eq!(done[0].buffer.bytes(), &bytes[PAGE..2 * PAGE]);
        });
        thread.join().unwrap();
    }
}

const DEPTH: usize = 16;
const PAGES: usize = 64;

/// Submits a read of one page, whose number is the tag.
fn submit(tier: &mut dyn Tier, page: usize) {
    tier.submit(page as u64, FileId(0), (page * PAGE) as u64, Buffer::new(PAGE));
}

/// Takes completions until `seen` has so many: each page once, with its bytes.
fn take(tier: &mut dyn Tier, bytes: &[u8], seen: &mut [usize; PAGES], count: usize) {
    let mut done = Vec::new();
    while seen.iter().sum::<usize>() < count {
        tier.poll(true, &mut done).unwrap();
        for completion in done.drain(..) {
            let page = completion.tag as usize;
            assert_eq!(completion.result.unwrap(), PAGE, "page {page}");
            assert!(completion.buffer.bytes() == &bytes[page * PAGE..][..PAGE], "page {page}");
            seen[page] += 1;
        }
    }
}

/// Reads before, while and after the ring is refused. `started` of those under way are with the kernel.
fn refused_with(started: usize, has_bell: bool, error: i32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let bytes: Vec<u8> = (0..PAGES * PAGE).map(|i| (i / 9) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let thread = std::thread::spawn(move || {
        let file = Arc::new(open_direct(&path).unwrap().0);
        let mut tier = open_file(&file, DEPTH, PAGE, IoChoice::Uring).unwrap();
        let waker = has_bell.then(|| tier.waker().unwrap());
        let mut seen = [0; PAGES];
        (0..DEPTH).for_each(|page| submit(tier.as_mut(), page));
        tier.start().unwrap();
        take(tier.as_mut(), &bytes, &mut seen, DEPTH);
        assert_eq!(tier.name(), "io_uring");

        let under_way: Vec<usize> = (DEPTH..2 * DEPTH).collect();
        let (first, rest) = under_way.split_at(started);
        first.iter().for_each(|&page| submit(tier.as_mut(), page));
        tier.start().unwrap();
        rest.iter().for_each(|&page| submit(tier.as_mut(), page));
        waker.iter().for_each(|waker| waker.wake());
        refuse(libc::SYS_io_uring_enter, error);
        take(tier.as_mut(), &bytes, &mut seen, 2 * DEPTH);
        for page in 2 * DEPTH..PAGES {
            submit(tier.as_mut(), page);
            tier.start().unwrap();
            take(tier.as_mut(), &bytes, &mut seen, page + 1);
        }
        assert_eq!(tier.name(), "pread");
        assert_eq!((seen, tier.room()), ([1; PAGES], DEPTH), "each read ends once");
        if let Some(waker) = waker {
            // What was rung before is heard at most once more; then a wait lasts until it is rung.
            tier.poll(false, &mut Vec::new()).unwrap();
            std::thread::spawn(move || waker.wake());
            tier.poll(true, &mut Vec::new()).unwrap();
        }
    });
    thread.join().unwrap();
}

#[test]
fn a_ring_that_is_refused_later_is_replaced_and_no_read_is_lost_or_repeated() {
    if let Some(why) = uring_refusal() {
        leave_out(Need::IoUring, &why);
        return;
    }
    for started in [0, 1, DEPTH / 2, DEPTH] {
        for has_bell in [false, true] {
            for error in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
                refused_with(started, has_bell, error);
            }
        }
    }
}

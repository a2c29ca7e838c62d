//! A ring of io_uring that can be made and must not be entered, as the profiles of some containers have it.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]

use std::sync::Arc;

use stratann_core::PAGE;
use stratann_core::query::StoreId;
use stratann_engine::tier::{Buffer, IoChoice, open, open_direct, uring_refusal};

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
            assert!(open(&file, 4, PAGE, IoChoice::Uring).is_err());
            let mut tier = open(&file, 4, PAGE, IoChoice::Auto).unwrap();
            assert_eq!(tier.name(), "pread");
            let mut done = Vec::new();
            tier.submit(7, StoreId(0), PAGE as u64, Buffer::new(PAGE));
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

//! Tests that need more than every machine has: a program, or a feature of the kernel. One that is left out is
//! recorded, for `make test` to list. [`etcd`] starts such a program. [`way`] is a way to a server that can be cut,
//! [`hostile`] a server with bad replies. [`addresses`] finds free ones.
//!
//! With `STRATANN_REQUIRE=all` a test fails when what it needs could be there.

pub mod etcd;
pub mod hostile;
pub mod way;

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};

/// Loopback addresses on which nobody listens. Each call takes a host of its own: on a host that all share, another
/// test or connection might take a port before its server does.
///
/// # Panics
/// No port is free.
pub fn addresses(count: usize) -> Vec<SocketAddr> {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let ([_, _, high, low], call) = (std::process::id().to_be_bytes(), CALLS.fetch_add(1, Ordering::Relaxed));
    addresses_at(Ipv4Addr::new(127, high % 250 + 1, low, call % 250 + 1), count)
}

/// As [`addresses`], at a host that a certificate names.
///
/// # Panics
/// No port is free.
pub fn addresses_at(host: Ipv4Addr, count: usize) -> Vec<SocketAddr> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((host, 0)).expect("a free port")).collect();
    held.iter().map(|listener| listener.local_addr().expect("its address")).collect()
}

/// Requirement that a test may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The program `etcd`.
    Etcd,
    /// An S3 server: the program `versitygw`.
    S3Server,
    /// The right to make memory control groups.
    MemoryGroups,
    /// io_uring.
    IoUring,
    /// Data sets that are no part of the repository.
    DataSets,
    /// A C++ compiler, which runs GPU kernels on a processor.
    Compiler,
    /// A GPU, its driver and the compiler of kernels.
    Gpu,
    /// The compiler of kernels.
    Nvrtc,
    /// The library of UCX.
    Ucx,
}

impl Need {
    /// Name of the requirement in the list.
    pub fn name(self) -> &'static str {
        match self {
            Need::Etcd => "etcd",
            Need::S3Server => "an S3 server",
            Need::MemoryGroups => "memory control groups",
            Need::IoUring => "io_uring",
            Need::DataSets => "data sets",
            Need::Compiler => "a C++ compiler",
            Need::Gpu => "a GPU",
            Need::Nvrtc => "NVRTC",
            Need::Ucx => "UCX",
        }
    }

    /// Way to install it, where every machine can have it.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Need::Etcd | Need::S3Server => Some("install it with `make tools`"),
            Need::Compiler => Some("install g++, or set CXX to a C++ compiler"),
            _ => None,
        }
    }
}

/// Records that the running test is left out, or a part of it, and why: one line in the file named by
/// `STRATANN_LEFT_OUT`.
///
/// # Panics
/// With `STRATANN_REQUIRE=all`, when `need` can be installed. When the file cannot be written.
pub fn leave_out(need: Need, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    eprintln!("left out for want of {}: {why}", need.name());
    if let Some(remedy) = need.remedy().filter(|_| is_required()) {
        panic!("STRATANN_REQUIRE=all, but {} is missing ({why}); {remedy}", need.name());
    }
    if let Some(path) = std::env::var_os("STRATANN_LEFT_OUT") {
        let line = format!("{}\t{test}\t{}\n", need.name(), why.replace(['\t', '\n'], " "));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of STRATANN_LEFT_OUT");
    }
}

/// Whether all that can be there must be: `STRATANN_REQUIRE=all`.
pub fn is_required() -> bool {
    std::env::var_os("STRATANN_REQUIRE").is_some_and(|value| value == "all")
}

//! Checksums of the engine's manifests, which it writes and does not compare.
//!
//! Each folder below `keyspaces` has a file `current`, numbers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | number of the manifest, `vN` |
//! | 16 | xxh3 of its bytes, 128 bits |
//! | 1 | 0 |
//!
//! A keyspace without `current` would be removed by the engine, and a damaged manifest can end the process in it.

use std::io;
use std::path::Path;

use stratann_storage::input;
use xxhash_rust::xxh3::xxh3_128;

const CURRENT_BYTES: u64 = 25;
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Compares the manifests of all keyspaces with their checksums.
pub(super) fn check(database: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(database.join("keyspaces"))? {
        let folder = entry?.path();
        let is_number =
            folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u64>().is_ok());
        if !is_number {
            return Err(damaged(&folder, "is nothing of the engine"));
        }
        check_keyspace(&folder)?;
    }
    Ok(())
}

fn check_keyspace(folder: &Path) -> io::Result<()> {
    let path = folder.join("current");
    let current = read(&path, CURRENT_BYTES)?;
    let number = current.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    let sum = current.get(8..).and_then(<[u8]>::first_chunk::<16>).map(|bytes| u128::from_le_bytes(*bytes));
    let (Some(number), Some(sum), Some(0)) = (number, sum, current.get(24)) else {
        return Err(damaged(&path, "names no manifest"));
    };
    let manifest = folder.join(format!("v{number}"));
    if xxh3_128(&read(&manifest, MANIFEST_BYTES_MAX)?) != sum {
        return Err(damaged(&manifest, "differs from its checksum"));
    }
    Ok(())
}

fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    input::read_up_to(path, bytes_max)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

fn damaged(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} {why}", path.display()))
}

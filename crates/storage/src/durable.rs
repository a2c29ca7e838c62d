//! Durable writes, and JSON documents with a checksum of their own.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Result};

/// Gives a JSON object a checksum over all else that it holds.
pub fn seal(document: &mut serde_json::Value) {
    document["checksum"] = hex(xxh3_64(document.to_string().as_bytes())).into();
}

/// Takes the checksum out again; false when it is not that of the rest.
pub fn unseal(document: &mut serde_json::Value) -> bool {
    let sum = document.as_object_mut().and_then(|o| o.remove("checksum"));
    sum.as_ref().and_then(|s| s.as_str()) == Some(&hex(xxh3_64(document.to_string().as_bytes())))
}

/// 16 hexadecimal digits.
pub fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}

/// Writes a file and makes it durable.
pub fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::io("syncing", folder, &e))
}

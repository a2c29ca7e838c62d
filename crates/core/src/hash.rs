//! Two hashes: one for checksums, one for reproducible random numbers.

/// The checksum of files and messages: xxh3, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// The checksum of a unit of an index. The seed is that of its build, so that units of another build do not match; it
/// is 0 before format version 4.
pub fn seeded_checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed)
}

/// A number that looks random and depends on its arguments alone (splitmix64), so that no order of threads can change
/// it.
pub fn hash(seed: u64, stream: u64, index: u64) -> u64 {
    let mut x = seed
        .wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        .wrapping_add(index.wrapping_mul(0xD1B5_4A32_D192_ED03))
        .wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

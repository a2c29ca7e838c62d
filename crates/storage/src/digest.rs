//! Digests that tell equal content from other content, also where somebody looks for two of the same digest.

/// SHA-256.
pub type Digest = [u8; 32];

/// The digest of these bytes.
pub fn digest(bytes: &[u8]) -> Digest {
    let mut own = [0; 32];
    own.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    own
}

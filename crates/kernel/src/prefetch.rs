//! Prefetch hints.

/// Prefetches the cache lines of `bytes`. Has no effect that the program can see.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let mut at = 0;
        while at < bytes.len() {
            // SAFETY: the address lies inside `bytes`; a prefetch reads nothing that the program could see.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(at).cast()) };
            // The last byte may be in a line of its own, because `bytes` begin anywhere.
            at = if at + 1 == bytes.len() { bytes.len() } else { (at + 64).min(bytes.len() - 1) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

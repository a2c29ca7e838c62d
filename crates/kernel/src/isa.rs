//! Instruction set of the kernels, chosen once per process.

use std::sync::OnceLock;

/// An instruction set with kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust.
    Scalar,
    /// Arm Advanced SIMD.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
}

impl Isa {
    /// The name shown by `stratann doctor`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// The best instruction set this machine has.
pub fn best() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        if avx2 && avx512 {
            return Isa::Avx512;
        }
        if avx2 {
            return Isa::Avx2;
        }
    }
    #[cfg(target_arch = "aarch64")]
    return Isa::Neon;
    #[allow(unreachable_code)]
    Isa::Scalar
}

/// Returns whether this machine can run the kernels of `isa`.
pub fn is_available(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon => best() == Isa::Neon,
        Isa::Avx2 | Isa::Avx512 => isa <= best(),
    }
}

/// The instruction set in use: [`best`], or a lesser one named by the environment variable `STRATANN_ISA`.
pub fn current() -> Isa {
    static CURRENT: OnceLock<Isa> = OnceLock::new();
    *CURRENT.get_or_init(|| {
        let asked = std::env::var("STRATANN_ISA").ok();
        [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .find(|i| Some(i.name()) == asked.as_deref() && is_available(*i))
            .unwrap_or_else(best)
    })
}

/// Compiles the function `$body` for each instruction set and calls the best one.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $body:ident) => {
        $(#[$doc])*
        #[inline]
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    $body($($arg),*)
                }
                match $crate::isa::current() {
                    // SAFETY: `current` names only instruction sets that this machine has.
                    $crate::isa::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    _ => {}
                }
            }
            $body($($arg),*)
        }
    };
}
pub(crate) use for_each_isa;

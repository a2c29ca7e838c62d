//! The profile that all builds on a disk share, in the cache folder of the user.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::{Origin, Profile, ProfileOptions, origin};
use crate::durable::hex;
use crate::output::OutputPath;
use crate::tier::IoChoice;
use crate::{Error, Progress, Result};

/// Measures for a build that finds no kept profile. The size of the set does not count, since builds of all sizes use
/// what is kept.
pub const BUILD_OPTIONS: ProfileOptions =
    ProfileOptions { seconds: 8.0, scratch_bytes: 256 << 20, io: IoChoice::Auto };

/// The place of the profile of the disk that holds a folder.
#[derive(Clone, Debug)]
pub struct KeptProfile {
    /// The file, whether it exists or not.
    pub path: PathBuf,
    origin: Origin,
}

impl KeptProfile {
    /// The place of the profile of the disk of `folder`, for this processor and way of reading.
    ///
    /// # Errors
    /// When no cache folder is known, because neither `STRATANN_CACHE`, `XDG_CACHE_HOME` nor `HOME` is set.
    pub fn of_disk(folder: &Path) -> Result<KeptProfile> {
        let cache = cache_folder(&|name| std::env::var_os(name)).ok_or_else(|| {
            Error::bad_input(
                "no cache folder is known; set STRATANN_CACHE to a folder that can be written to, or HOME",
            )
        })?;
        let origin = Origin::of_searches(folder);
        let disk = origin::disk_identity(folder).unwrap_or_else(|| origin.device.clone());
        let facts = [&disk, &origin.file_system, &origin.cpu, &origin.isa, &origin.io_backend];
        let name = xxh3_64(facts.map(String::as_str).join("\n").as_bytes());
        Ok(KeptProfile { path: cache.join(format!("profile-{}.json", hex(name))), origin })
    }

    /// Reads the profile; `None` where none is kept.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, no profile, of a newer format, or of another machine.
    pub fn read(&self) -> Result<Option<Profile>> {
        if self.path.symlink_metadata().is_err() {
            return Ok(None);
        }
        let profile = Profile::read(&self.path)?;
        // The name of the file follows from the disk and the way of reading. The name of a disk, and the cores of a
        // process, may differ from time to time.
        let here = Origin {
            cores: profile.origin.cores,
            device: profile.origin.device.clone(),
            io_backend: profile.origin.io_backend.clone(),
            ..self.origin.clone()
        };
        match profile.origin.differences(&here) {
            None => Ok(Some(profile)),
            Some(how) => Err(Error::bad_input(format!(
                "{} is of another machine ({how}); measure with `stratann profile --keep`",
                self.path.display()
            ))),
        }
    }

    /// Keeps a profile in place of what is there.
    ///
    /// # Errors
    /// When the cache folder or the file cannot be written.
    pub fn write(&self, profile: &Profile) -> Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
        OutputPath::check(&self.path, true, &[])?.write(profile.text()?.as_bytes())
    }
}

impl Profile {
    /// The profile that builds on the disk of `folder` share: the kept one, or one that is measured now and kept. What
    /// cannot be read or kept is a note.
    ///
    /// # Errors
    /// As [`Profile::measure`].
    pub fn of_disk(folder: &Path, progress: &dyn Progress) -> Result<Profile> {
        let kept = KeptProfile::of_disk(folder);
        let found = kept.as_ref().map_or(Ok(None), KeptProfile::read);
        match found {
            Ok(Some(profile)) => return Ok(profile),
            Ok(None) => {}
            Err(why) => progress.note(&format!("note: {why}: the disk is measured again")),
        }
        let measured = Profile::measure(folder, &BUILD_OPTIONS, progress)?;
        match kept.and_then(|kept| keep_first(&kept, &measured)) {
            Ok(profile) => Ok(profile),
            Err(why) => {
                progress.note(&format!(
                    "note: the profile of this disk cannot be kept ({why}): each build measures again, and equal \
                     builds may get unequal plans; set STRATANN_CACHE to a folder that can be written to, or give \
                     --profile"
                ));
                Ok(measured)
            }
        }
    }
}

/// Keeps what was measured, unless another build has kept a profile meanwhile: then that counts for both.
fn keep_first(kept: &KeptProfile, measured: &Profile) -> Result<Profile> {
    if let Ok(Some(profile)) = kept.read() {
        return Ok(profile);
    }
    kept.write(measured)?;
    Ok(measured.clone())
}

/// `STRATANN_CACHE`, or `stratann` in `XDG_CACHE_HOME` or in `~/.cache`. Empty and relative paths do not count, as the
/// XDG specification demands.
fn cache_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("STRATANN_CACHE")
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("stratann")))
        .or_else(|| Some(folder("HOME")?.join(".cache/stratann")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::profile::tests::measured;

    fn place(folder: &Path) -> KeptProfile {
        KeptProfile { path: folder.join("cache/profile.json"), origin: Origin::of_searches(folder) }
    }

    fn of_here(folder: &Path) -> Profile {
        Profile { origin: Origin::of_searches(folder), ..measured() }
    }

    #[test]
    fn the_cache_folder_is_the_first_that_is_named() {
        let find = |set: &[(&str, &str)]| {
            cache_folder(&|name| set.iter().find(|s| s.0 == name).map(|s| OsString::from(s.1)))
        };
        let home = ("HOME", "/home/x");
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[home]), Some("/home/x/.cache/stratann".into()));
        assert_eq!(find(&[home, ("XDG_CACHE_HOME", "/xdg")]), Some("/xdg/stratann".into()));
        assert_eq!(find(&[home, ("XDG_CACHE_HOME", "xdg")]), Some("/home/x/.cache/stratann".into()));
        assert_eq!(find(&[("XDG_CACHE_HOME", "/xdg"), ("STRATANN_CACHE", "/own")]), Some("/own".into()));
        assert_eq!(find(&[home, ("STRATANN_CACHE", "")]), Some("/home/x/.cache/stratann".into()));
    }

    #[test]
    fn what_is_kept_first_counts_for_all() {
        let folder = tempfile::tempdir().unwrap();
        let kept = place(folder.path());
        assert_eq!(kept.read().unwrap(), None);
        let first = of_here(folder.path());
        assert_eq!(keep_first(&kept, &first).unwrap(), first);
        let second = Profile { seconds: 7.0, ..first.clone() };
        assert_eq!(keep_first(&kept, &second).unwrap(), first);
        kept.write(&second).unwrap();
        assert_eq!(kept.read().unwrap(), Some(second));
        assert_eq!(std::fs::read_dir(folder.path().join("cache")).unwrap().count(), 1, "no temporary file");
    }

    #[test]
    fn what_is_no_profile_of_here_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, good) = (place(folder.path()), of_here(folder.path()));
        kept.write(&good).unwrap();
        let text = std::fs::read_to_string(&kept.path).unwrap();
        let mut other = good.clone();
        other.origin.cpu = "another".into();
        for content in [&text[..50], "", "{}", "{\"format\": \"x\"}", &other.text().unwrap()] {
            std::fs::write(&kept.path, content).unwrap();
            assert!(kept.read().is_err(), "{content}");
            assert_eq!(keep_first(&kept, &good).unwrap(), good);
            assert_eq!(kept.read().unwrap().as_ref(), Some(&good));
        }
        // Neither the cores of a process nor the name of a disk makes another machine.
        other.origin = Origin { cores: 99, device: "/dev/other".into(), ..good.origin.clone() };
        kept.write(&other).unwrap();
        assert_eq!(kept.read().unwrap(), Some(other));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cache"), "a file").unwrap();
        assert_eq!(place(folder.path()).write(&measured()).unwrap_err().kind, ErrorKind::Io);
    }

    #[test]
    fn a_disk_has_one_place() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inside")).unwrap();
        let of = |path: &Path| KeptProfile::of_disk(path).map(|kept| kept.path).ok();
        assert_eq!(of(folder.path()), of(&folder.path().join("inside")));
    }
}

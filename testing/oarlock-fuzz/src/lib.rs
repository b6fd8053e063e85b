//! Feeds hostile bytes to a reader, on stable Rust.
//!
//! A target is a test that calls [`fuzz`] with a corpus of real inputs and a function that reads bytes. It replays the
//! corpus, and then changes what it has for a second, or for `OARLOCK_FUZZ_SECONDS`. The function returns a [`Seen`]:
//! what came of the bytes, as a number. An input with a new outcome joins the corpus of this run, so that later changes
//! start from what got far. That is coverage by outcomes, not by branches, which stable Rust cannot see.
//!
//! A reader must not panic and must not hang. The input that did is printed as a Rust literal: put it into the corpus.
//! It must not make much of little either: `cargo xtask fuzz` limits the memory of the process. A process that asks for
//! more is aborted and prints nothing, so the input that is read is written to the folder `OARLOCK_FUZZ_INPUTS`, if that
//! is set.
//!
//! With the folder `OARLOCK_FUZZ_NEW` a run begins also with the inputs that earlier ones left there, below the name of
//! the target, and leaves those that reached something new.

mod mutate;

use std::collections::HashSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An input that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The most bytes of an input.
const MOST_BYTES: usize = 64 * 1024;

/// So many inputs are read however busy the machine is, by a reader that takes microseconds.
const LEAST_INPUTS: u64 = 20_000;

/// The most inputs that are kept.
const MOST_KEPT: usize = 5_000;

/// What came of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// An outcome that differs from others by this.
    #[must_use]
    pub fn of(outcome: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        outcome.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// The outcome of a reader: whether it failed, and the words of its answer without numbers and quoted parts, which
    /// only repeat the input.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let mut quoted = false;
        let words: String = text
            .chars()
            .filter(|c| {
                quoted ^= matches!(c, '"' | '`' | '\'');
                !quoted && !c.is_ascii_digit()
            })
            .take(200)
            .collect();
        Self::of(words)
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many inputs were read.
    pub inputs: u64,
    /// How many outcomes there were.
    pub outcomes: usize,
}

/// Reads the corpus and changes it, for as long as it is asked for.
///
/// `corpus` is the folder `fuzz/<name>` beside the manifest of the calling crate; `more` are inputs that the caller
/// makes. `words` are what the format is made of.
///
/// # Panics
/// With the input, when `read` panics; when there is no corpus at all, because that tests nothing.
pub fn fuzz(name: &str, corpus: &Path, more: &[Vec<u8>], words: &[&str], read: impl Fn(&[u8]) -> Seen) -> Report {
    fuzz_at_least(LEAST_INPUTS, name, corpus, more, words, read)
}

/// [`fuzz`] for a reader that takes milliseconds: it reads at least so many inputs.
///
/// # Panics
/// As [`fuzz`].
pub fn fuzz_at_least(
    least: u64,
    name: &str,
    corpus: &Path,
    more: &[Vec<u8>],
    words: &[&str],
    read: impl Fn(&[u8]) -> Seen,
) -> Report {
    let mut kept = files(corpus);
    kept.extend_from_slice(more);
    let new = std::env::var_os("OARLOCK_FUZZ_NEW").map(|folder| New::in_folder(&Path::new(&folder).join(name)));
    assert!(!matches!(new, Some(Err(_))), "{name}: no folder for new inputs: {new:?}");
    let new = new.and_then(Result::ok);
    assert!(!kept.is_empty(), "{name}: no corpus in {}", corpus.display());
    kept.extend(new.iter().flat_map(New::earlier));
    let watched = Watched::start(name);
    let written = std::env::var_os("OARLOCK_FUZZ_INPUTS").map(|folder| Written::to(Path::new(&folder), name));
    assert!(!matches!(written, Some(Err(_))), "{name}: no file for its inputs: {written:?}");
    let run = |input: &[u8]| {
        watched.begins(input);
        if let Some(Ok(file)) = &written {
            let done = file.begins(input);
            assert!(done.is_ok(), "{name}: its input cannot be written: {done:?}");
        }
        let seen = catch_unwind(AssertUnwindSafe(|| read(input)));
        watched.ends();
        seen.unwrap_or_else(|panic| {
            eprintln!("{name}: this input panics: b\"{}\"", input.escape_ascii());
            resume_unwind(panic)
        })
    };
    let mut seen: HashSet<u64> = kept.iter().map(|input| run(input).0).collect();
    let mut rng = fastrand::Rng::with_seed(seed());
    let (started, budget, mut inputs) = (Instant::now(), budget(), kept.len() as u64);
    while inputs < least || inputs % 64 != 0 || started.elapsed() < budget {
        let mut input = kept[rng.usize(..kept.len())].clone();
        let other = rng.usize(..kept.len());
        mutate::change(&mut input, &kept[other], words, &mut rng);
        input.truncate(MOST_BYTES);
        let outcome = run(&input).0;
        if seen.insert(outcome) && kept.len() < MOST_KEPT {
            if let Some(new) = &new {
                let done = new.keep(outcome, &input);
                assert!(done.is_ok(), "{name}: a new input cannot be written: {done:?}");
            }
            kept.push(input);
        }
        inputs += 1;
    }
    println!("{name}: {inputs} inputs in {:.1} s, {} outcomes", started.elapsed().as_secs_f64(), seen.len());
    Report { inputs, outcomes: seen.len() }
}

/// Inputs that reached something new, one file for each outcome.
#[derive(Debug)]
struct New(PathBuf);

impl New {
    fn in_folder(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self(folder.to_owned()))
    }

    /// Those of earlier runs.
    fn earlier(&self) -> Vec<Vec<u8>> {
        files(&self.0)
    }

    fn keep(&self, outcome: u64, input: &[u8]) -> std::io::Result<()> {
        std::fs::write(self.0.join(format!("{outcome:016x}")), input)
    }
}

/// The input that is read, as a file: what is left of a process that is aborted.
#[derive(Debug)]
struct Written(File);

impl Written {
    fn to(folder: &Path, name: &str) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        File::create(folder.join(name)).map(Self)
    }

    fn begins(&self, input: &[u8]) -> std::io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(input, 0)
    }
}

fn files(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn budget() -> Duration {
    Duration::from_secs(number("OARLOCK_FUZZ_SECONDS").unwrap_or(1))
}

/// The same changes in every ordinary run; others in a long one.
fn seed() -> u64 {
    number("OARLOCK_FUZZ_SEED").unwrap_or(number("OARLOCK_FUZZ_SECONDS").map_or(1, |_| fastrand::u64(..)))
}

/// A thread that ends the process when an input hangs, with its name: a test that never ends says nothing.
struct Watched {
    current: Arc<Mutex<(Vec<u8>, bool)>>,
    began: Arc<AtomicU64>,
    origin: Instant,
}

impl Watched {
    fn start(name: &str) -> Self {
        let watched = Self { current: Arc::default(), began: Arc::default(), origin: Instant::now() };
        let (current, began, origin, name) =
            (Arc::downgrade(&watched.current), watched.began.clone(), watched.origin, name.to_owned());
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let Some(current) = current.upgrade() else { return };
                let since = origin.elapsed().saturating_sub(Duration::from_millis(began.load(Ordering::Relaxed)));
                let (input, reads) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
                if *reads && since > HANGS_AFTER {
                    eprintln!("{name}: this input hangs: b\"{}\"", input.escape_ascii());
                    std::process::abort();
                }
            }
        });
        watched
    }

    fn begins(&self, input: &[u8]) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.0.clear();
        current.0.extend_from_slice(input);
        current.1 = true;
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.began.store(now, Ordering::Relaxed);
    }

    fn ends(&self) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).1 = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(read: impl Fn(&[u8]) -> Seen) -> Report {
        fuzz("tests", Path::new("nowhere"), &[b"lock 12 {}".to_vec()], &["deep", "lock"], read)
    }

    #[test]
    fn what_is_guarded_by_three_bytes_is_found() {
        let panics = catch_unwind(AssertUnwindSafe(|| {
            run(|input| {
                let depth = b"lo!".iter().zip(input).take_while(|(a, b)| a == b).count();
                assert!(depth < 3, "found");
                Seen::of(depth)
            })
        }));
        assert!(panics.is_err(), "three bytes were not found");
    }

    #[test]
    fn the_input_that_is_read_is_in_a_file() {
        let folder = std::env::temp_dir().join(format!("oarlock-fuzz-{}", std::process::id()));
        let written = Written::to(&folder, "tests").unwrap();
        for input in [&b"a long input"[..], b"short", b""] {
            written.begins(input).unwrap();
            assert_eq!(std::fs::read(folder.join("tests")).unwrap(), input);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// In a process of its own: the folder is named by a variable.
    #[test]
    fn an_input_that_reached_something_new_is_kept_and_the_next_run_begins_with_it() {
        const NAME: &str = "tests::an_input_that_reached_something_new_is_kept_and_the_next_run_begins_with_it";
        let depth = |input: &[u8]| b"lo!".iter().zip(input).take_while(|(a, b)| a == b).count();
        if std::env::var_os("OARLOCK_FUZZ_NEW").is_some() {
            let reads = std::cell::Cell::new(0);
            fuzz("new", Path::new("nowhere"), &[b"x".to_vec()], &[], |input| {
                reads.set(reads.get() + 1);
                if depth(input) == 3 && reads.get() < 10 {
                    println!("it was there from the beginning");
                }
                Seen::of(depth(input))
            });
            return;
        }
        let folder = std::env::temp_dir().join(format!("oarlock-fuzz-new-{}", std::process::id()));
        let run = || {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", NAME, "--nocapture"]).env("OARLOCK_FUZZ_NEW", &folder).output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(done.status.success(), "{said}");
            (files(&folder.join("new")), said.contains("from the beginning"))
        };
        let (first, second) = (run(), run());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((first.0.iter().map(|input| depth(input)).max(), first.1), (Some(3), false), "{first:?}");
        assert_eq!((second.0.len(), second.1), (first.0.len(), true), "{second:?}");
    }

    #[test]
    fn a_reader_that_works_is_only_counted() {
        let report = run(|input| Seen::of(input.first()));
        assert!(report.inputs > 1000 && report.outcomes > 50, "{report:?}");
    }

    #[test]
    fn an_outcome_is_without_what_was_read() {
        assert_eq!(Seen::text("no number: `17`, byte 3"), Seen::text("no number: `x`, byte 40"));
        assert_ne!(Seen::text("too long"), Seen::text("too short"));
    }
}

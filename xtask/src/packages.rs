//! The Debian packages that the tests need: one line each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A Debian package and the file that shows it is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name in Debian.
    pub(crate) name: &'static str,
    /// What the tests use it for.
    pub(crate) purpose: &'static str,
    /// A program looked up like a shell would (and in the `sbin` folders), or an absolute path in which one `*` may
    /// stand for a whole folder name, such as a version.
    pub(crate) proof: &'static str,
}

/// Everything the tests need beyond Rust and a C compiler.
pub(crate) const PACKAGES: &[Package] = &[
    Package {
        name: "util-linux",
        purpose: "flock(1), which `oarlock run` is compared with",
        proof: "flock",
    },
    Package {
        name: "procps",
        purpose: "ps(1) and kill(1), to look at child processes and to stop them",
        proof: "ps",
    },
];

/// What has to be done before the tests can run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanting<'a> {
    /// Neither installed nor provided by other means.
    pub(crate) missing: Vec<&'a Package>,
    /// Installed according to Debian, yet without the file that proves it: installing again would do nothing.
    pub(crate) broken: Vec<&'a Package>,
}

/// Compares what is needed with what is there. A program that came from elsewhere than Debian counts.
pub(crate) fn wanting<'a>(
    needed: &'a [Package],
    installed: &BTreeSet<String>,
    is_proven: impl Fn(&Package) -> bool,
) -> Wanting<'a> {
    let mut wanting = Wanting::default();
    for package in needed.iter().filter(|package| !is_proven(package)) {
        if installed.contains(package.name) {
            wanting.broken.push(package);
        } else {
            wanting.missing.push(package);
        }
    }
    wanting
}

/// The arguments for `dpkg-query` whose answer [`installed`] reads.
pub(crate) const DPKG_QUERY: &[&str] = &["-W", "-f", "${Package} ${db:Status-Status}\\n"];

/// The packages that are fully installed, out of the answer of `dpkg-query`.
pub(crate) fn installed(answer: &str) -> BTreeSet<String> {
    answer
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(_, status)| status.trim() == "installed")
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Whether the file that proves a package is on this machine.
pub(crate) fn is_there(proof: &str, search: &[PathBuf]) -> bool {
    if !proof.starts_with('/') {
        return search.iter().any(|folder| folder.join(proof).is_file());
    }
    match proof.split_once("/*/") {
        None => Path::new(proof).is_file(),
        Some((above, below)) => std::fs::read_dir(format!("{above}/"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.path().join(below).is_file()),
    }
}

/// Where programs are looked up: `PATH`, then the folders of servers, which a plain user's `PATH` lacks in Debian.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: &[Package] = &[
        Package {
            name: "present",
            purpose: "",
            proof: "a",
        },
        Package {
            name: "absent",
            purpose: "",
            proof: "b",
        },
        Package {
            name: "own-build",
            purpose: "",
            proof: "c",
        },
        Package {
            name: "gutted",
            purpose: "",
            proof: "d",
        },
    ];

    fn names(packages: &[&Package]) -> Vec<&'static str> {
        packages.iter().map(|package| package.name).collect()
    }

    #[test]
    fn only_what_is_missing_is_wanted() {
        let installed = ["present", "gutted"].map(String::from).into();
        let wanting = wanting(NEEDED, &installed, |package| {
            ["a", "c"].contains(&package.proof)
        });
        assert_eq!(names(&wanting.missing), ["absent"]);
        assert_eq!(names(&wanting.broken), ["gutted"]);
    }

    #[test]
    fn nothing_is_wanted_when_everything_is_there() {
        assert_eq!(
            wanting(NEEDED, &BTreeSet::new(), |_| true),
            Wanting::default()
        );
    }

    #[test]
    fn a_removed_package_is_not_installed() {
        let answer = "procps installed\nredis-server config-files\netcd-server half-configured\n";
        assert_eq!(installed(answer), ["procps".to_owned()].into());
    }

    #[test]
    fn a_proof_is_a_name_a_path_or_a_path_with_any_version() {
        let here = env!("CARGO_MANIFEST_DIR");
        let src = [PathBuf::from(here).join("src")];
        assert!(is_there("main.rs", &src));
        assert!(!is_there("no-such-file", &src));
        assert!(!is_there("src", &[PathBuf::from(here)]), "a folder");
        assert!(is_there(&format!("{here}/Cargo.toml"), &[]));
        assert!(!is_there(&format!("{here}/no-such-file"), &[]));
        assert!(is_there(&format!("{here}/*/main.rs"), &[]));
        assert!(!is_there(&format!("{here}/*/no-such-file"), &[]));
        assert!(!is_there("/no-such-folder/*/main.rs", &[]));
    }

    #[test]
    fn the_table_is_sound() {
        let mut seen = BTreeSet::new();
        for package in PACKAGES {
            assert!(seen.insert(package.name), "{} twice", package.name);
            assert!(!package.purpose.is_empty(), "{}", package.name);
            assert!(package.proof.matches('*').count() <= 1, "{}", package.name);
        }
    }
}

//! The Debian packages that the tests need: one line each.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// A Debian package and the file that shows it is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Its name in Debian.
    pub(crate) name: &'static str,
    /// What the tests use it for.
    pub(crate) purpose: &'static str,
    /// A program in it, or the archive of one, looked up as a shell would, and in the `sbin` folders.
    pub(crate) proof: &'static str,
    /// Where the program is if not there; one `*` may stand for a whole folder name, such as a version.
    pub(crate) folder: Option<&'static str>,
    /// The service that installing it would start and enable. The tests start servers of their own.
    pub(crate) service: Option<&'static str>,
}

/// Everything the tests need beyond Rust and a C compiler.
pub(crate) const PACKAGES: &[Package] = &[
    Package {
        name: "util-linux",
        purpose: "flock(1), which `oarlock run` is compared with",
        proof: "flock",
        folder: None,
        service: None,
    },
    Package {
        name: "procps",
        purpose: "ps(1) and kill(1), to look at child processes and to stop them",
        proof: "ps",
        folder: None,
        service: None,
    },
    Package {
        name: "openssl",
        purpose: "openssl(1), which makes the certificates of encrypted servers",
        proof: "openssl",
        folder: None,
        service: None,
    },
    Package {
        name: "curl",
        purpose: "curl(1), which writes to an object store in the guide",
        proof: "curl",
        folder: None,
        service: None,
    },
    Package {
        name: "redis-server",
        purpose: "the server behind redis: URLs",
        proof: "redis-server",
        folder: None,
        service: Some("redis-server"),
    },
    Package {
        name: "etcd-server",
        purpose: "the server behind etcd: URLs",
        proof: "etcd",
        folder: None,
        service: Some("etcd"),
    },
    Package {
        name: "etcd-client",
        purpose: "etcdctl(1), which makes users, replaces members and takes locks that we share",
        proof: "etcdctl",
        folder: None,
        service: None,
    },
    Package {
        name: "e2fsprogs",
        purpose: "mkfs.ext4(8), for a disk whose power is cut",
        proof: "mkfs.ext4",
        folder: None,
        service: None,
    },
    Package {
        name: "iproute2",
        purpose: "ip(8), which makes hosts with a network of their own",
        proof: "ip",
        folder: None,
        service: None,
    },
    Package {
        name: "nftables",
        purpose: "nft(8), which drops the packets of these hosts",
        proof: "nft",
        folder: None,
        service: None,
    },
    Package {
        name: "strace",
        purpose: "strace(1), which makes the disk of a server slow",
        proof: "strace",
        folder: None,
        service: None,
    },
    Package {
        name: "default-jre-headless",
        purpose: "java(1), which ZooKeeper runs on",
        proof: "java",
        folder: None,
        service: None,
    },
    // The package `zookeeper` would add start scripts, and a Java with windows and sound.
    Package {
        name: "libzookeeper-java",
        purpose: "the server behind zk: URLs",
        proof: "zookeeper.jar",
        folder: Some("/usr/share/java"),
        service: None,
    },
    Package {
        name: "postgresql",
        purpose: "the server behind postgres: URLs",
        proof: "postgres",
        folder: Some("/usr/lib/postgresql/*/bin"),
        service: Some("postgresql"),
    },
    Package {
        name: "pgbouncer",
        purpose: "a pooler in front of PostgreSQL",
        proof: "pgbouncer",
        folder: None,
        service: Some("pgbouncer"),
    },
    Package {
        name: "mariadb-server",
        purpose: "the server behind mysql: and mariadb: URLs",
        proof: "mariadbd",
        folder: None,
        service: Some("mariadb"),
    },
    Package {
        name: "chromium",
        purpose: "the browser that the dashboard is tested in",
        proof: "chromium",
        folder: None,
        service: None,
    },
];

/// What parts of the long tier need beside those.
pub(crate) const LONG_PACKAGES: &[Package] = &[
    Package {
        name: "python3-venv",
        purpose: "python3(1), for the tests of the Python package",
        proof: "python3",
        folder: None,
        service: None,
    },
    Package {
        name: "libpq-dev",
        purpose: "the client library of PostgreSQL, which diesel links",
        proof: "pg_config",
        folder: None,
        service: None,
    },
    Package {
        name: "libmariadb-dev",
        purpose: "the client library of MariaDB, which diesel links",
        proof: "mariadb_config",
        folder: None,
        service: None,
    },
    Package {
        name: "musl-tools",
        purpose: "musl-gcc(1), for a program without libraries",
        proof: "musl-gcc",
        folder: None,
        service: None,
    },
    Package {
        name: "debootstrap",
        purpose: "debootstrap(8), which makes a clean system",
        proof: "debootstrap",
        folder: None,
        service: None,
    },
];

/// What has to be done before the tests can run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanting<'a> {
    /// Neither installed nor provided by other means.
    pub(crate) missing: Vec<&'a Package>,
    /// Installed according to Debian, yet without the program that proves it: installing again would do nothing.
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

/// Whether the program that proves a package is on this machine.
pub(crate) fn is_there(package: &Package, search: &[PathBuf]) -> bool {
    search
        .iter()
        .cloned()
        .chain(package.folder.into_iter().flat_map(matching))
        .any(|folder| folder.join(package.proof).is_file())
}

/// The folders that a path with at most one `*` stands for.
fn matching(folder: &str) -> Vec<PathBuf> {
    let Some((above, below)) = folder.split_once("/*/") else {
        return vec![PathBuf::from(folder)];
    };
    std::fs::read_dir(above).into_iter().flatten().flatten().map(|entry| entry.path().join(below)).collect()
}

/// Where programs are looked up: `PATH`, then the folders of servers, which a plain user's `PATH` lacks in Debian.
pub(crate) fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn package(name: &'static str, proof: &'static str) -> Package {
        Package { name, purpose: "", proof, folder: None, service: None }
    }

    const NEEDED: &[Package] =
        &[package("present", "a"), package("absent", "b"), package("own-build", "c"), package("gutted", "d")];

    fn names(packages: &[&Package]) -> Vec<&'static str> {
        packages.iter().map(|package| package.name).collect()
    }

    #[test]
    fn only_what_is_missing_is_wanted() {
        let installed = ["present", "gutted"].map(String::from).into();
        let wanting = wanting(NEEDED, &installed, |package| ["a", "c"].contains(&package.proof));
        assert_eq!(names(&wanting.missing), ["absent"]);
        assert_eq!(names(&wanting.broken), ["gutted"]);
    }

    #[test]
    fn nothing_is_wanted_when_everything_is_there() {
        assert_eq!(wanting(NEEDED, &BTreeSet::new(), |_| true), Wanting::default());
    }

    #[test]
    fn a_removed_package_is_not_installed() {
        let answer = "procps installed\nredis-server config-files\netcd-server half-configured\n";
        assert_eq!(installed(answer), ["procps".to_owned()].into());
    }

    #[test]
    fn a_program_is_found_by_its_name() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let search = [here.clone(), here.join("src")];
        assert!(is_there(&package("", "main.rs"), &search));
        assert!(!is_there(&package("", "no-such-file"), &search));
        assert!(!is_there(&package("", "src"), &search), "a folder");
    }

    #[test]
    fn a_program_is_found_in_its_own_folder_whatever_the_version() {
        const HERE: &str = env!("CARGO_MANIFEST_DIR");
        for (folder, proof, expected) in [
            (concat!(env!("CARGO_MANIFEST_DIR"), "/src"), "main.rs", true),
            (concat!(env!("CARGO_MANIFEST_DIR"), "/*/stand-in"), "cargo", true),
            (concat!(env!("CARGO_MANIFEST_DIR"), "/*/stand-in"), "rustc", false),
            (HERE, "main.rs", false),
            ("/no-such-folder/*/bin", "main.rs", false),
        ] {
            let package = Package { folder: Some(folder), ..package("", proof) };
            assert_eq!(is_there(&package, &[]), expected, "{package:?}");
        }
    }

    #[test]
    fn the_table_is_sound() {
        let mut seen = BTreeSet::new();
        for package in PACKAGES {
            assert!(seen.insert(package.name), "{} twice", package.name);
            assert!(!package.purpose.is_empty(), "{}", package.name);
            assert!(!package.proof.contains('/'), "{}", package.name);
            let folder = package.folder.unwrap_or("/");
            assert!(folder.starts_with('/'), "{}", package.name);
            assert_eq!(folder.matches('*').count(), folder.matches("/*/").count(), "{}", package.name);
        }
    }
}

//! The suites, the servers that each runs on, and how those are got that are not installed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::built::Package;
use super::{find, version_in, version_of};
use crate::setup::debian::{MYSQL, Server};
use crate::workspace::Workspace;

/// A test program, and the servers that it runs on.
#[derive(Debug)]
pub(super) struct Suite {
    /// What `--only versions=` calls it.
    pub(super) name: &'static str,
    /// What its server is called.
    pub(super) store: &'static str,
    /// The crate and the test.
    pub(super) program: &'static str,
    /// The feature that it is built with, if that is not one of the other tests; and which of its parts then runs.
    pub(super) feature: Option<(&'static str, (&'static str, &'static str))>,
    /// The version of the server that a search path leads to.
    pub(super) version: fn(&Workspace, &OsStr) -> Option<String>,
    /// Servers beside the one that is installed.
    pub(super) others: &'static [Other],
}

impl Suite {
    /// The crate, the test and the feature.
    pub(super) fn title(&self) -> String {
        self.feature.map_or_else(|| self.program.to_owned(), |(feature, _)| format!("{}, {feature}", self.program))
    }

    /// What its servers are called in the table, each once.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let mut names: Vec<_> = std::iter::once(self.store).chain(self.others.iter().map(Other::name)).collect();
        names.dedup();
        names.into_iter()
    }
}

/// An older or a newer server: what it is called, and where it comes from.
#[derive(Debug)]
pub(super) struct Other {
    name: &'static str,
    source: Source,
}

/// Where it comes from.
#[derive(Debug)]
enum Source {
    /// Another suite of Debian.
    Debian {
        server: Server,
        folders: &'static [&'static str],
        /// A name that the tests know its program by, and that program.
        alias: Option<(&'static str, &'static str)>,
    },
    /// The packages of a language.
    Package(Package),
}

const BIN: &[&str] = &["usr/bin"];

impl Other {
    const fn new(name: &'static str, server: Server, folders: &'static [&'static str]) -> Self {
        Self { name, source: Source::Debian { server, folders, alias: None } }
    }

    const fn built(name: &'static str, package: Package) -> Self {
        Self { name, source: Source::Package(package) }
    }

    /// Its version, as far as it is known before it was got.
    pub(super) fn version(&self) -> &'static str {
        match &self.source {
            Source::Debian { .. } => "other",
            Source::Package(package) => package.version(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// What `--only versions=` calls it, where it is no other version of the server that is installed.
    pub(super) fn key(&self) -> String {
        self.name.to_lowercase()
    }

    /// Unpacks it, and gives the folders of its programs.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(super) fn get(&self, workspace: &Workspace) -> anyhow::Result<Vec<PathBuf>> {
        let (server, folders, alias) = match &self.source {
            Source::Debian { server, folders, alias } => (server, folders, alias),
            Source::Package(package) => return Ok(vec![package.get(workspace)?]),
        };
        server.unpack(workspace)?;
        let home = server.home(workspace);
        let loader = Loader::of(&home).context("it has no loader of libraries")?;
        let folders: Vec<_> = folders.iter().map(|folder| home.join(folder)).collect();
        for folder in &folders {
            wrap(folder, &loader)?;
        }
        if let Some((alias, program)) = alias {
            let alias = folders[0].join(alias);
            let _ = fs::remove_file(&alias);
            std::os::unix::fs::symlink(program, alias)?;
        }
        Ok(folders)
    }
}

/// The server that shares the suite of another.
pub(super) const VALKEY: &str = "valkey";

/// What the suite of ZooKeeper with TLS is called.
pub(super) const ENCRYPTED: &str = "zks";

/// Every suite.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        name: "redis",
        store: "Redis",
        program: "oarlock-redis test conformance",
        feature: None,
        version: |_, path| version_of(&find(path, &[], "redis-server")?),
        others: &[
            Other::new("Redis", Server::new("redis-6", "redis-server", "usr/bin/redis-server").of("bullseye"), BIN),
            Other::new("Redis", Server::new("redis", "redis-server", "usr/bin/redis-server"), BIN),
            Other {
                name: "Valkey",
                source: Source::Debian {
                    server: Server::new("valkey", "valkey-server", "usr/bin/valkey-server"),
                    folders: BIN,
                    alias: Some(("redis-server", "valkey-server")),
                },
            },
        ],
    },
    Suite {
        name: "etcd",
        store: "etcd",
        program: "oarlock-etcd test conformance",
        feature: None,
        version: |_, path| version_of(&find(path, &[], "etcd")?),
        others: &[
            Other::new("etcd", Server::new("etcd", "etcd-server", "usr/bin/etcd"), BIN),
            Other::built("etcd", Package::Etcd("3.6.16")),
            Other::built("etcd", Package::Etcd("3.7.3")),
        ],
    },
    Suite {
        name: "zookeeper",
        store: "ZooKeeper",
        program: "oarlock-zookeeper test conformance",
        feature: None,
        version: |_, path| zookeeper_in(find(path, &["/usr/share/java"], "zookeeper.jar")?.parent()?),
        others: &[Other::built("ZooKeeper", Package::ZooKeeper("3.9.4"))],
    },
    Suite {
        name: ENCRYPTED,
        store: "ZooKeeper with TLS",
        program: "oarlock-zookeeper test conformance",
        // It brings a second cryptography library.
        feature: Some(("tls", ("OARLOCK_ZOOKEEPER", "tls"))),
        version: |_, path| zookeeper_in(find(path, &["/usr/share/java"], "zookeeper.jar")?.parent()?),
        others: &[Other::built("ZooKeeper with TLS", Package::ZooKeeper("3.9.4"))],
    },
    Suite {
        name: "postgres",
        store: "PostgreSQL",
        program: "oarlock-sql test postgres_conformance",
        feature: None,
        version: |_, path| version_of(&postgres(path)?),
        others: &[Other::new(
            "PostgreSQL",
            Server::new("postgres-18", "postgresql-18", "usr/lib/postgresql/18/bin/postgres"),
            &["usr/lib/postgresql/18/bin"],
        )],
    },
    Suite {
        name: "pgbouncer",
        store: "PostgreSQL behind PgBouncer",
        program: "oarlock-sql test postgres_pooled",
        feature: None,
        version: |_, path| {
            let pooler = version_of(&find(path, &["/usr/sbin"], "pgbouncer")?)?;
            Some(format!("{} behind {pooler}", version_of(&postgres(path)?)?))
        },
        others: &[Other::new(
            "PostgreSQL behind PgBouncer",
            Server::new("pgbouncer", "pgbouncer", "usr/sbin/pgbouncer"),
            &["usr/sbin"],
        )],
    },
    Suite {
        name: "mariadb",
        store: "MariaDB",
        program: "oarlock-sql test mariadb_conformance",
        feature: None,
        version: |_, path| version_of(&find(path, &["/usr/sbin"], "mariadbd")?),
        others: &[Other::new(
            "MariaDB",
            Server::new("mariadb", "mariadb-server-core", "usr/sbin/mariadbd"),
            &["usr/sbin", "usr/bin"],
        )],
    },
    Suite {
        name: "mysql",
        store: "MySQL",
        program: "oarlock-sql test mysql_conformance",
        feature: None,
        version: |workspace, _| {
            let home = MYSQL.home(workspace);
            let loader = Loader::of(&home)?;
            let mut command = std::process::Command::new(&loader.program);
            command.arg("--library-path").arg(loader.libraries).arg(home.join("usr/sbin/mysqld")).arg("--version");
            version_in(&String::from_utf8_lossy(&command.output().ok()?.stdout))
        },
        others: &[],
    },
    Suite {
        name: "redlock",
        store: "Redlock",
        program: "oarlock-quorum test redlock",
        feature: None,
        version: |_, path| Some(format!("Redis {}", version_of(&find(path, &[], "redis-server")?)?)),
        others: &[Other::new("Redlock", Server::new("redis", "redis-server", "usr/bin/redis-server"), BIN)],
    },
];

/// `postgres` as the tests find it: by the search path, then the newest of those that are installed.
fn postgres(path: &OsStr) -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut installed: Vec<_> = installed.map(|entry| entry.path().join("bin/postgres")).collect();
    installed.sort();
    find(path, &[], "postgres").or_else(|| installed.pop())
}

/// The version of the archive in this folder: it has a second name, with its version.
fn zookeeper_in(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut versions = names.filter_map(|name| version_in(name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?));
    versions.next()
}

/// What starts a program that was unpacked with its libraries.
#[derive(Debug)]
struct Loader {
    program: PathBuf,
    libraries: PathBuf,
}

impl Loader {
    /// That of the libraries which were unpacked there. An older suite has it in another place, and it lacks options:
    /// the machine's own serves these, with its own C library, which is newer.
    fn of(home: &Path) -> Option<Self> {
        let libraries = home.join("usr/lib");
        let program = loader_in(&libraries).or_else(|| loader_in(Path::new("/usr/lib")))?;
        let libraries = libraries.join(program.parent()?.file_name()?);
        Some(Self { program, libraries })
    }
}

/// The folder of a machine's libraries has the name of its kind.
fn loader_in(libraries: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(libraries).ok()?.flatten();
    let files = folders.filter_map(|folder| fs::read_dir(folder.path()).ok()).flatten().flatten();
    files.map(|file| file.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ld-linux") && path.is_file()
    })
}

/// What a program is called behind its script.
const WRAPPED: &str = "elf";

/// Puts a script in the place of each program, which starts it with the libraries that came with it. A program that
/// looks for others beside itself finds their scripts.
fn wrap(folder: &Path, loader: &Loader) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("{} is missing", folder.display()))? {
        let path = entry?.path();
        let is_plain = path.symlink_metadata()?.is_file() && path.extension().is_none_or(|end| end != WRAPPED);
        let wrapped = PathBuf::from(format!("{}.{WRAPPED}", path.display()));
        if is_plain && fs::read(&path)?.starts_with(b"\x7fELF") {
            fs::rename(&path, &wrapped)?;
        } else if !is_plain || !wrapped.is_file() {
            continue;
        }
        // Each time, because the folder may have moved.
        let (loader, libraries, program) = (loader.program.display(), loader.libraries.display(), wrapped.display());
        let script =
            format!("#!/bin/sh\nexec '{loader}' --library-path '{libraries}' --argv0 \"$0\" '{program}' \"$@\"\n");
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_are_wrapped_and_only_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        fs::write(file("server"), b"\x7fELF and more").expect("written");
        fs::write(file("script"), b"#!/bin/sh\n").expect("written");
        std::os::unix::fs::symlink("server", file("alias")).expect("linked");
        for libraries in ["/one", "/two"] {
            let loader = Loader { program: "/ld-linux.so".into(), libraries: libraries.into() };
            wrap(folder.path(), &loader).expect("wrapped");
            let script = fs::read_to_string(file("server")).expect("a script");
            assert!(script.contains(libraries) && script.contains("server.elf"), "{script}");
            assert_eq!(fs::read(file("server.elf")).expect("the program"), b"\x7fELF and more");
        }
        assert_eq!(fs::read(file("script")).expect("a script"), b"#!/bin/sh\n");
        assert!(!file("alias.elf").exists() && !file("server.elf.elf").exists());
    }

    #[test]
    fn an_archive_says_its_version_by_its_second_name() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["zookeeper.jar", "zookeeper-it-3.8.0.jar", "zookeeper-3.8.0.jar"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        assert_eq!(zookeeper_in(folder.path()).as_deref(), Some("3.8.0"));
    }

    #[test]
    fn an_older_server_is_started_by_the_machine_itself() {
        let home = tempfile::tempdir().expect("a folder");
        let own = loader_in(Path::new("/usr/lib")).expect("the machine's own");
        let libraries = home.path().join("usr/lib").join(own.parent().and_then(Path::file_name).expect("a name"));
        fs::create_dir_all(&libraries).expect("made");
        let loader = Loader::of(home.path()).expect("a loader");
        assert_eq!((&loader.program, &loader.libraries), (&own, &libraries));
        let newer = libraries.join("ld-linux-newer.so.2");
        fs::write(&newer, "").expect("written");
        assert_eq!(Loader::of(home.path()).expect("a loader").program, newer);
    }
}

//! The suites, the servers that each runs on, and how newer ones are got.

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
    /// What its server is called.
    pub(super) store: &'static str,
    /// The crate and the test.
    pub(super) program: &'static str,
    /// The version of the server that a search path leads to.
    pub(super) version: fn(&Workspace, &OsStr) -> Option<String>,
    /// Servers beside the one that is installed.
    pub(super) newer: &'static [Newer],
}

/// A newer server: what it is called, and the folders of its programs.
#[derive(Debug)]
pub(super) struct Newer {
    name: &'static str,
    source: Source,
}

/// Where it comes from.
#[derive(Debug)]
enum Source {
    /// Debian's unstable suite.
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

impl Newer {
    const fn new(name: &'static str, server: Server, folders: &'static [&'static str]) -> Self {
        Self { name, source: Source::Debian { server, folders, alias: None } }
    }

    const fn built(name: &'static str, package: Package) -> Self {
        Self { name, source: Source::Package(package) }
    }

    /// Its version, as far as it is known before it was got.
    pub(super) fn version(&self) -> &'static str {
        match &self.source {
            Source::Debian { .. } => "newer",
            Source::Package(package) => package.version(),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
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
        let loader = loader(&home).context("it has no loader of libraries")?;
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

/// Every suite.
pub(super) const SUITES: &[Suite] = &[
    Suite {
        store: "Redis",
        program: "oarlock-redis test conformance",
        version: |_, path| version_of(&find(path, &[], "redis-server")?),
        newer: &[
            Newer::new("Redis", Server::new("redis", "redis-server", "usr/bin/redis-server"), BIN),
            Newer {
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
        store: "etcd",
        program: "oarlock-etcd test conformance",
        version: |_, path| version_of(&find(path, &[], "etcd")?),
        newer: &[
            Newer::new("etcd", Server::new("etcd", "etcd-server", "usr/bin/etcd"), BIN),
            Newer::built("etcd", Package::Etcd("3.6.16")),
            Newer::built("etcd", Package::Etcd("3.7.3")),
        ],
    },
    Suite {
        store: "ZooKeeper",
        program: "oarlock-zookeeper test conformance",
        version: |_, path| {
            let archive = fs::canonicalize(find(path, &["/usr/share/java"], "zookeeper.jar")?).ok()?;
            let name = archive.file_stem()?.to_str()?;
            version_in(name.strip_prefix("zookeeper-")?)
        },
        newer: &[Newer::built("ZooKeeper", Package::ZooKeeper("3.9.4"))],
    },
    Suite {
        store: "PostgreSQL",
        program: "oarlock-sql test postgres_conformance",
        version: |_, path| version_of(&postgres(path)?),
        newer: &[Newer::new(
            "PostgreSQL",
            Server::new("postgres-18", "postgresql-18", "usr/lib/postgresql/18/bin/postgres"),
            &["usr/lib/postgresql/18/bin"],
        )],
    },
    Suite {
        store: "PostgreSQL behind PgBouncer",
        program: "oarlock-sql test postgres_pooled",
        version: |_, path| {
            let pooler = version_of(&find(path, &["/usr/sbin"], "pgbouncer")?)?;
            Some(format!("{} behind {pooler}", version_of(&postgres(path)?)?))
        },
        newer: &[Newer::new(
            "PostgreSQL behind PgBouncer",
            Server::new("pgbouncer", "pgbouncer", "usr/sbin/pgbouncer"),
            &["usr/sbin"],
        )],
    },
    Suite {
        store: "MariaDB",
        program: "oarlock-sql test mariadb_conformance",
        version: |_, path| version_of(&find(path, &["/usr/sbin"], "mariadbd")?),
        newer: &[Newer::new(
            "MariaDB",
            Server::new("mariadb", "mariadb-server-core", "usr/sbin/mariadbd"),
            &["usr/sbin", "usr/bin"],
        )],
    },
    Suite {
        store: "MySQL",
        program: "oarlock-sql test mysql_conformance",
        version: |workspace, _| {
            let home = MYSQL.home(workspace);
            let loader = loader(&home)?;
            let mut command = std::process::Command::new(&loader);
            command.arg("--library-path").arg(loader.parent()?).arg(home.join("usr/sbin/mysqld")).arg("--version");
            version_in(&String::from_utf8_lossy(&command.output().ok()?.stdout))
        },
        newer: &[],
    },
];

/// `postgres` as the tests find it: by the search path, then the newest of those that are installed.
fn postgres(path: &OsStr) -> Option<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut installed: Vec<_> = installed.map(|entry| entry.path().join("bin/postgres")).collect();
    installed.sort();
    find(path, &[], "postgres").or_else(|| installed.pop())
}

/// The loader of the libraries that were unpacked there. The folder of a machine's libraries has the name of its kind.
fn loader(home: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(home.join("usr/lib")).ok()?.flatten();
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
fn wrap(folder: &Path, loader: &Path) -> anyhow::Result<()> {
    let libraries = loader.parent().context("the loader is in no folder")?;
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
        let (loader, libraries, program) = (loader.display(), libraries.display(), wrapped.display());
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
        for libraries in ["/one/ld-linux.so", "/two/ld-linux.so"] {
            wrap(folder.path(), Path::new(libraries)).expect("wrapped");
            let script = fs::read_to_string(file("server")).expect("a script");
            assert!(script.contains(libraries) && script.contains("server.elf"), "{script}");
            assert_eq!(fs::read(file("server.elf")).expect("the program"), b"\x7fELF and more");
        }
        assert_eq!(fs::read(file("script")).expect("a script"), b"#!/bin/sh\n");
        assert!(!file("alias.elf").exists() && !file("server.elf.elf").exists());
    }
}

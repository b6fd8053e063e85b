//! Servers that no suite of Debian has, from the packages of the language that they are written in.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::setup::debian::{SERVERS, run_quietly};
use crate::workspace::Workspace;

/// Where a server comes from: its version there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Package {
    /// The Go module of etcd.
    Etcd(&'static str),
    /// The Maven artifact of ZooKeeper.
    ZooKeeper(&'static str),
}

/// All that there is to say to Go.
const MAIN: &str = "package main

import (
	\"os\"

	\"go.etcd.io/etcd/server/v3/etcdmain\"
)

func main() { etcdmain.Main(os.Args) }
";

impl Package {
    pub(super) fn version(self) -> &'static str {
        match self {
            Self::Etcd(version) | Self::ZooKeeper(version) => version,
        }
    }

    /// Builds it if it is not there, and gives its folder.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(super) fn get(self, workspace: &Workspace) -> anyhow::Result<PathBuf> {
        let (name, program) = match self {
            Self::Etcd(_) => ("etcd", "etcd"),
            Self::ZooKeeper(_) => ("zookeeper", "zookeeper.jar"),
        };
        let home = workspace.target().join(SERVERS).join(format!("{name}-{}", self.version()));
        if !home.join(program).exists() {
            fs::create_dir_all(&home)?;
            match self {
                Self::Etcd(version) => build_etcd(&home, version)?,
                Self::ZooKeeper(version) => copy_zookeeper(&home, version)?,
            }
        }
        Ok(home)
    }
}

fn build_etcd(home: &Path, version: &str) -> anyhow::Result<()> {
    fs::write(home.join("go.mod"), "module etcd\n\ngo 1.24\n")?;
    fs::write(home.join("main.go"), MAIN)?;
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.current_dir(home).env("GOFLAGS", "-mod=mod").args(arguments);
        run_quietly(&mut go).map(|_| ())
    };
    go(&["get", &format!("go.etcd.io/etcd/server/v3@v{version}")])?;
    go(&["build", "-o", "etcd", "."])
}

fn copy_zookeeper(home: &Path, version: &str) -> anyhow::Result<()> {
    // What its own scripts find beside it, and its description does not name.
    let needs = [
        ("org.apache.zookeeper", "zookeeper", version),
        ("org.xerial.snappy", "snappy-java", "1.1.10.5"),
        ("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),
    ];
    let mut pom = "<project><modelVersion>4.0.0</modelVersion><groupId>oarlock</groupId>\
                   <artifactId>server</artifactId><version>1</version><dependencies>\n"
        .to_owned();
    for (group, artifact, version) in needs {
        writeln!(
            pom,
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        )?;
    }
    fs::write(home.join("pom.xml"), pom + "</dependencies></project>\n")?;
    let mut maven = Command::new("mvn");
    maven.current_dir(home).args(["--quiet", "--batch-mode", "dependency:copy-dependencies"]);
    run_quietly(maven.arg(format!("-DoutputDirectory={}", home.join("lib").display())))?;
    let mut archives = Vec::new();
    for entry in fs::read_dir(home.join("lib"))? {
        archives.push(entry?.file_name().into_string().ok().context("an archive has no name")?);
    }
    fs::write(home.join("manifest"), class_path(&archives))?;
    let archive = format!("zookeeper-{version}.jar");
    run_quietly(Command::new("jar").current_dir(home).args(["cfm", &archive, "manifest"]))?;
    std::os::unix::fs::symlink(&archive, home.join("zookeeper.jar"))?;
    Ok(())
}

/// The manifest of an archive that names all others, as that of Debian does. A line goes on where the next begins with a
/// space.
fn class_path(archives: &[String]) -> String {
    let lines: Vec<_> = archives.iter().map(|archive| format!("lib/{archive}")).collect();
    format!("Class-Path: {}\n", lines.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_all_others() {
        let archives = ["a.jar", "b.jar"].map(str::to_owned);
        assert_eq!(class_path(&archives), "Class-Path: lib/a.jar\n  lib/b.jar\n");
    }
}

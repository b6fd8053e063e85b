//! How the program of each language is built: by the language's own tools, with the versions its lock file pins,
//! outside the tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::packages;
use crate::workspace::{Failure, Workspace, stream};

type Build = fn(&Workspace, &Path, bool) -> Result<(), Failure>;

/// One language.
pub(super) struct Language {
    /// As the runner calls it, and the folder in `interop/`.
    pub(super) name: &'static str,
    /// The programs it needs.
    programs: &'static [&'static str],
    /// Where they come from.
    brings: &'static str,
    pub(super) build: Build,
}

pub(super) const LANGUAGES: &[Language] = &[
    Language { name: "python", programs: &["python3"], brings: "Debian: python3-venv", build: python },
    Language { name: "node", programs: &["node", "npm"], brings: "Debian: nodejs npm", build: node },
    Language { name: "go", programs: &["go"], brings: "go.dev, 1.24 or later", build: go },
    Language { name: "java", programs: &["javac", "mvn"], brings: "Debian: default-jdk-headless maven", build: java },
];

impl Language {
    /// What it lacks here, if anything.
    pub(super) fn lacks(&self, workspace: &Workspace) -> Option<String> {
        let search = packages::search_path();
        let is_there = |program: &&str| search.iter().any(|folder| folder.join(program).is_file());
        if let Some(program) = self.programs.iter().find(|program| !is_there(program)) {
            return Some(format!("`{program}` is not installed ({})", self.brings));
        }
        let folder = workspace.root().join("interop").join(self.name);
        (!folder.is_dir()).then(|| format!("there is no {}", folder.display()))
    }
}

/// A virtual environment with exactly the versions of `requirements.txt`.
fn python(workspace: &Workspace, out: &Path, _: bool) -> Result<(), Failure> {
    let (source, out) = (workspace.root().join("interop/python"), out.join("python"));
    unless_done(&out, &[source.join("requirements.txt")], || {
        stream(Command::new("python3").args(["-m", "venv"]).arg(&out))?;
        let mut pip = Command::new(out.join("bin/pip"));
        pip.args(["install", "--quiet", "--no-deps", "--disable-pip-version-check", "-r"]);
        stream(pip.arg(source.join("requirements.txt")))
    })
}

/// A copy of the sources, beside what `npm ci` installs for them.
fn node(workspace: &Workspace, out: &Path, _: bool) -> Result<(), Failure> {
    let (source, out) = (workspace.root().join("interop/node"), out.join("node"));
    let sources = files(&source)?;
    std::fs::create_dir_all(&out).context("cannot make a folder")?;
    for file in &sources {
        let copy = out.join(file.file_name().unwrap_or_default());
        std::fs::copy(file, copy).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    unless_done(&out, &[source.join("package-lock.json")], || {
        stream(Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&out))
    })
}

/// Go's own cache knows what is up to date.
fn go(workspace: &Workspace, out: &Path, _: bool) -> Result<(), Failure> {
    let mut build = Command::new("go");
    build.args(["build", "-buildvcs=false", "-mod=readonly", "-o"]).arg(out.join("go/peer")).arg(".");
    stream(build.current_dir(workspace.root().join("interop/go")))
}

/// For each library and version: Maven brings the jars, the compiler does the rest.
fn java(workspace: &Workspace, out: &Path, all: bool) -> Result<(), Failure> {
    let folder = workspace.root().join("interop/java");
    let common = files(&folder.join("common"))?;
    for library in folders(&folder)?.iter().filter(|library| library.join("pom.xml").is_file()) {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let versions = std::fs::read_to_string(library.join("versions"))
            .with_context(|| format!("{name} has no file `versions`"))?;
        let own: Vec<_> =
            files(library)?.into_iter().filter(|file| file.extension().is_some_and(|it| it == "java")).collect();
        // What comes after a version is who needs it.
        let versions = versions.lines().map(|line| line.split_once(' ').map_or(line, |(version, _)| version));
        for version in versions.take(if all { usize::MAX } else { 1 }) {
            let out = out.join("java").join(format!("{name}-{version}"));
            let sources: Vec<_> = common.iter().chain(&own).cloned().collect();
            unless_done(&out.join("lib"), &[library.join("pom.xml")], || {
                let mut maven = Command::new("mvn");
                maven.args(["--quiet", "--batch-mode", "--file"]).arg(library.join("pom.xml"));
                maven.arg(format!("-D{name}.version={version}")).arg("dependency:copy-dependencies");
                stream(maven.arg(format!("-DoutputDirectory={}", out.join("lib").display())))
            })?;
            unless_done(&out.join("classes"), &sources, || {
                let mut javac = Command::new("javac");
                javac.args(["-nowarn", "-Xlint:-deprecation", "--release", "17", "-cp"]);
                javac.arg(format!("{}/*", out.join("lib").display()));
                stream(javac.arg("-d").arg(out.join("classes")).args(&sources))
            })?;
        }
    }
    Ok(())
}

/// Does `work` that fills `out`, unless it was done with the very same `sources` before.
fn unless_done(out: &Path, sources: &[PathBuf], work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let stamp = out.join(".done");
    let mut made_from = Vec::new();
    for file in sources {
        made_from.extend(std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    if std::fs::read(&stamp).is_ok_and(|before| before == made_from) {
        return Ok(());
    }
    work()?;
    std::fs::create_dir_all(out).and_then(|()| std::fs::write(stamp, made_from)).context("cannot mark it as done")?;
    Ok(())
}

fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    listed(folder, |path| path.is_file())
}

fn folders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    listed(folder, |path| path.is_dir())
}

fn listed(folder: &Path, wanted: fn(&PathBuf) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(wanted).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_and_again_after_a_change() {
        let folder = std::env::temp_dir().join(format!("xtask-interop-{}", std::process::id()));
        let (source, out) = (folder.join("source"), folder.join("out"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(&source, "").unwrap();
        let mut runs = 0;
        let mut run = || {
            unless_done(&out, std::slice::from_ref(&source), || {
                runs += 1;
                Ok(())
            })
            .unwrap();
        };
        run();
        run();
        std::fs::write(&source, "changed").unwrap();
        run();
        assert_eq!(runs, 2);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_in_a_lock_file_names_a_registry() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = std::fs::read_to_string(root.join("interop/node/package-lock.json")).unwrap();
        assert!(!text.contains("\"resolved\""));
        let text = std::fs::read_to_string(root.join("interop/python/requirements.txt")).unwrap();
        assert!(text.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("==")), "{text}");
    }

    #[test]
    fn every_language_has_a_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for language in LANGUAGES {
            assert!(root.join("interop").join(language.name).is_dir(), "{}", language.name);
        }
    }
}

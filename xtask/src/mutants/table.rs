//! The mutants: small tables beside the code that they break, in `mutants/*.toml` of each crate.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// One rule, one way to break it, and the test that notices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// A short name, for the command line.
    pub(crate) name: String,
    /// The rule that is broken.
    pub(crate) rule: String,
    /// How the rule is broken, in words, where the name does not say it.
    #[serde(default)]
    pub(crate) broken: String,
    /// The file: from the crate's folder in the table, from the root once it is read.
    pub(crate) file: PathBuf,
    /// Text that stands in it exactly once …
    pub(crate) from: String,
    /// … and what takes its place.
    pub(crate) to: String,
    /// The arguments of `cargo test` that must fail then.
    pub(crate) test: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

/// Every mutant of the tree at `root`, ordered by file of the tables.
pub(crate) fn read(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let mut found = Vec::new();
    for room in ["crates", "stores", "testing"] {
        for package in sorted(&root.join(room))? {
            let tables = package.join("mutants");
            if !tables.is_dir() {
                continue;
            }
            for path in sorted(&tables)? {
                let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let table: Table = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
                let package = package.strip_prefix(root)?;
                found.extend(
                    table.mutant.into_iter().map(|mutant| Mutant { file: package.join(&mutant.file), ..mutant }),
                );
            }
        }
    }
    Ok(found)
}

fn sorted(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

const PAGE: &str = "docs/track-record.md";
const BEGIN: &str = "<!-- mutants: written by `cargo xtask mutants --table` -->\n";
const END: &str = "<!-- end of mutants -->\n";

/// Writes the table of the track record anew. Whether it had to change.
pub(crate) fn write_page(root: &Path) -> anyhow::Result<bool> {
    let (old, new) = page(root)?;
    if old != new {
        std::fs::write(root.join(PAGE), &new)?;
    }
    Ok(old != new)
}

/// The page as it is, and as it should be.
pub(crate) fn page(root: &Path) -> anyhow::Result<(String, String)> {
    let old = std::fs::read_to_string(root.join(PAGE))?;
    let (Some((before, rest)), Some((_, after))) = (old.split_once(BEGIN), old.split_once(END)) else {
        bail!("{PAGE} has lost the marks of its table");
    };
    if !rest.contains(END) {
        bail!("the marks of the table in {PAGE} are in the wrong order");
    }
    let new = format!("{before}{BEGIN}{}{END}{after}", rows(&read(root)?)?);
    Ok((old, new))
}

fn rows(mutants: &[Mutant]) -> anyhow::Result<String> {
    let mut text = String::from("| rule | how it is broken | the test that notices | mutant |\n|---|---|---|---|\n");
    for Mutant { name, rule, broken, test, .. } in mutants {
        let broken = if broken.is_empty() { "see its patch" } else { broken };
        writeln!(text, "| {rule} | {broken} | `{}` | `{name}` |", test.trim_start_matches("-p oarlock-"))?;
    }
    Ok(text)
}

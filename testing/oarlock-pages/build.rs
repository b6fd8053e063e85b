//! Writes `pages.rs`: an item for each page, whose documentation is the page, so that rustdoc tests its programs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = fs::canonicalize("../..")?;
    let mut pages = vec![root.join("README.md"), root.join("README.zh.md")];
    find(&root.join("docs"), &mut pages)?;
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();

    let (mut items, mut names) = (String::new(), String::new());
    for page in &pages {
        println!("cargo::rerun-if-changed={}", page.display());
        let name = page.strip_prefix(&root).unwrap_or(page).display().to_string();
        // docs/guide/re-entrant.zh.md: the doctest has the name `docs_guide_re_entrant_zh_md`.
        let item: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let written = writeln!(items, "#[doc = include_str!({:?})]\n#[cfg(doctest)]\nstruct {item};", page.display())
            .and_then(|()| writeln!(names, "    {name:?},"));
        written.map_err(io::Error::other)?;
    }
    let program =
        format!("{items}\n/// Every page whose programs are tested.\npub const PAGES: &[&str] = &[\n{names}];\n");
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("cargo sets OUT_DIR"))?;
    fs::write(Path::new(&folder).join("pages.rs"), program)
}

/// Adds the files below `folder`.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    // A page that comes or goes changes its folder.
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { find(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

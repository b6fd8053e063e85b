//! The documentation as a book: its links work there, too.

use std::collections::{BTreeMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::{Outcome, links, pages, resolve, root};

const REPOSITORY: &str = "https://github.com/oarlock/oarlock/blob/main/";

/// The pages as mdBook gets them from its preprocessor, which is given them as mdBook would.
fn preprocessed() -> Result<Option<BTreeMap<PathBuf, String>>, Box<dyn std::error::Error>> {
    let chapters: Vec<_> = pages()
        .iter()
        .filter_map(|(page, text)| Some((page.strip_prefix("docs").ok()?, text)))
        .map(|(page, text)| {
            serde_json::json!({"Chapter": {"name": "", "content": text, "source_path": page, "sub_items": []}})
        })
        .collect();
    let mut command = Command::new("python3");
    command.arg("book_links.py").current_dir(root().join("docs")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = match command.spawn() {
        Ok(python) => python,
        Err(error) if std::env::var_os("CI").is_none() => {
            println!("skipped: no python3: {error}");
            return Ok(None);
        }
        Err(error) => panic!("python3 mends the links, and cannot be started: {error}"),
    };
    let book = serde_json::to_vec(&(serde_json::json!({}), serde_json::json!({"items": chapters})))?;
    let mut input = python.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || input.write_all(&book));
    let done = python.wait_with_output()?;
    writer.join().expect("it does not panic")?;
    assert!(done.status.success(), "book_links.py failed");
    let book: serde_json::Value = serde_json::from_slice(&done.stdout)?;
    let chapters = book["items"].as_array().ok_or("no chapters")?.iter().map(|item| &item["Chapter"]);
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(Some(chapters.map(|chapter| (text(&chapter["source_path"]).into(), text(&chapter["content"]))).collect()))
}

#[test]
fn links_lead_to_the_book_or_to_the_repository() -> Outcome {
    let Some(pages) = preprocessed()? else { return Ok(()) };
    let mut outside = 0;
    for (page, text) in &pages {
        for link in links(text) {
            let file = link.split('#').next().unwrap_or_default();
            if let Some(path) = file.strip_prefix(REPOSITORY) {
                assert!(root().join(path).exists(), "{}: {link}", page.display());
                outside += 1;
            } else if !file.is_empty() && !file.contains("://") && !file.starts_with("mailto:") {
                // What mdBook calls these pages.
                let file = file.replace("index.md", "README.md").replace("toc.html", "SUMMARY.md");
                let path = resolve(page, &file);
                assert!(
                    !path.starts_with("..") && root().join("docs").join(&path).exists(),
                    "{}: {link}",
                    page.display()
                );
            }
        }
    }
    assert!(outside > 10, "only {outside} links to files outside of docs/");
    Ok(())
}

/// mdBook, if it is installed. The long tier installs it below `target`.
fn mdbook() -> Result<Option<PathBuf>, Box<dyn std::error::Error>> {
    // Before 0.5 a preprocessor is started in another folder.
    let is_new = |version: &[u8]| !version.starts_with(b"mdbook v0.4") && !version.starts_with(b"mdbook v0.3");
    let works = |program: &Path| {
        Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success() && is_new(&out.stdout))
    };
    // Test programs are in TARGET/debug/deps.
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(3).ok_or("no target folder")?.join("mdbook");
    let own = folder.join("bin/mdbook");
    let installed = [PathBuf::from("mdbook"), own.clone()].into_iter().find(|program| works(program));
    if installed.is_some() || std::env::var_os("OARLOCK_LONG").is_none() {
        return Ok(installed);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "mdbook", "--version", "^0.5", "--locked", "--no-default-features", "--root"]).arg(folder);
    assert!(
        cargo.env_remove("CARGO_TARGET_DIR").status()?.success(),
        "`cargo install mdbook` failed: it needs the network"
    );
    Ok(Some(own))
}

/// Every file below `folder`.
fn files(folder: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    Ok(found)
}

/// The values of an attribute in a page of HTML.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    html.split(&format!(" {attribute}=\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn is_built_without_a_dead_link() -> Outcome {
    let Some(mdbook) = mdbook()? else {
        println!("skipped: mdbook is not installed; the long tier (OARLOCK_LONG=1) installs it");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let built = Command::new(mdbook).arg("build").arg(root().join("docs")).arg("-d").arg(folder.path()).output()?;
    let said = String::from_utf8_lossy(&built.stderr).into_owned() + &String::from_utf8_lossy(&built.stdout);
    assert!(built.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    let html = files(folder.path())?.into_iter().filter(|file| file.extension().is_some_and(|end| end == "html"));
    // One page for printing has all the others; the page of contents is a part of each.
    let html = html.filter(|file| !["print.html", "toc.html", "404.html"].iter().any(|name| file.ends_with(name)));
    let read = |file: PathBuf| std::fs::read_to_string(&file).map(|text| (file, text));
    let pages: BTreeMap<_, _> = html.map(read).collect::<Result<_, _>>()?;
    assert!(pages.len() > 70, "only {} pages were built", pages.len());
    let anchors: BTreeMap<_, HashSet<_>> =
        pages.iter().map(|(file, text)| (file.clone(), values(text, "id").into_iter().collect())).collect();
    let mut dead = Vec::new();
    for (page, text) in &pages {
        for link in [values(text, "href"), values(text, "src")].concat() {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.clone() } else { resolve(page, file) };
            let known = anchors.get(&path).is_none_or(|known| anchor.is_empty() || known.contains(anchor));
            if !known || !path.exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links of the book:\n{}", dead.join("\n"));
    Ok(())
}

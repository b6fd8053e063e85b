//! Checks the pages of the documentation: links, the table of contents, programs, the catalogue of errors.

#![allow(clippy::expect_used, clippy::panic, reason = "tests")]
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Component, Path, PathBuf};

mod pages {
    mod book;
    mod contents;
    mod manifests;
    mod programs;
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page, by its path in the repository: those of the root, and all below `docs`.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![root().join("docs")];
    let mut add = |path: PathBuf| {
        if path.extension().is_some_and(|extension| extension == "md") {
            let page = path.strip_prefix(root()).expect("below the root").to_owned();
            pages.insert(page.clone(), read(page));
        }
    };
    std::fs::read_dir(root()).expect("the root").for_each(|entry| add(entry.expect("an entry").path()));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of docs") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { add(path) }
        }
    }
    pages
}

/// The pages elsewhere. Those of crates are read by rustdoc, which checks their links.
fn pages_elsewhere() -> BTreeMap<PathBuf, String> {
    let mut folders: Vec<_> = [".github", "interop", "python"].iter().map(|folder| root().join(folder)).collect();
    let mut pages = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            if path.is_dir() && !path.ends_with("target") && !path.ends_with("node_modules") {
                folders.push(path);
            } else if is_page {
                let page = path.strip_prefix(root()).expect("below the root").to_owned();
                pages.insert(page.clone(), read(page));
            }
        }
    }
    pages
}

/// The lines outside of code blocks, without inline code.
fn prose(page: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            lines.push(line.split('`').step_by(2).collect::<Vec<_>>().join("x"));
        }
    }
    lines
}

/// The targets of links and pictures. A link may go over the end of a line, its target does not.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page) {
        for rest in line.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                found.push(target.split_whitespace().next().unwrap_or_default().to_owned());
            }
        }
    }
    found
}

/// The anchors of a page, as GitHub and mdBook make them from headings, and those that are written as `<a id="…">`.
fn anchors(page: &str) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut inside = false;
    for line in page.lines() {
        inside ^= line.trim_start().starts_with("```");
        if inside {
            continue;
        }
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let kept = heading.trim().to_lowercase();
            let slug: String = kept
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect();
            let again = (1..).map(|n| format!("{slug}-{n}")).find(|slug| !found.contains(slug));
            found.insert(if found.contains(&slug) { again.unwrap_or_default() } else { slug });
        }
        for rest in line.split("<a id=\"").skip(1) {
            found.extend(rest.split('"').next().map(str::to_owned));
        }
    }
    found
}

/// `page` and `target` joined, without `..`.
fn resolve(page: &Path, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in page.parent().expect("a page has a folder").join(target).components() {
        match part {
            Component::ParentDir => _ = path.pop(),
            part => path.push(part),
        }
    }
    path
}

fn dead_links(pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut dead = Vec::new();
    for (page, text) in pages {
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = if file.is_empty() { page.clone() } else { resolve(page, file) };
            let known = pages.get(&path).is_none_or(|text| anchor.is_empty() || anchors(text).contains(anchor));
            if !known || !(pages.contains_key(&path) || root().join(&path).exists()) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    dead
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages();
    assert!(pages.len() > 50, "only {} pages were found", pages.len());
    let elsewhere = pages_elsewhere();
    assert!(elsewhere.contains_key(Path::new("interop/README.md")), "{:?}", elsewhere.keys());
    let dead = dead_links(&pages.into_iter().chain(elsewhere).collect());
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

/// The sections of the table of contents, each as a page with the address that a link to it has.
fn sections(contents: &str) -> BTreeMap<PathBuf, &str> {
    let sections = contents.split("\n# ").skip(1);
    let anchor = |section: &str| anchors(&format!("# {}", section.lines().next().unwrap_or_default()));
    let address =
        |section| -> String { anchor(section).into_iter().map(|anchor| format!("docs/SUMMARY.md#{anchor}")).collect() };
    sections.map(|section| (PathBuf::from(address(section)), section)).collect()
}

/// How many clicks each page of `docs/` is away from `start`. The whole table of contents has every page, and is no way
/// to any of them; a section of it is.
fn clicks(start: &str, pages: &BTreeMap<PathBuf, String>) -> BTreeMap<PathBuf, usize> {
    let mut texts: BTreeMap<_, _> = pages.iter().map(|(page, text)| (page.clone(), text.as_str())).collect();
    let contents = texts.remove(Path::new("docs/SUMMARY.md"));
    texts.extend(contents.map(sections).unwrap_or_default());
    let mut away = BTreeMap::from([(PathBuf::from(start), 0)]);
    let mut next = VecDeque::from([PathBuf::from(start)]);
    while let Some(page) = next.pop_front() {
        for link in links(texts[&page]) {
            let to_section = resolve(&page, &link);
            let to_page = resolve(&page, link.split('#').next().unwrap_or_default());
            let target = if texts.contains_key(&to_section) { to_section } else { to_page };
            if texts.contains_key(&target) && !away.contains_key(&target) {
                away.insert(target.clone(), away[&page] + 1);
                next.push_back(target);
            }
        }
    }
    away
}

/// No page is an orphan: a reader gets from either README to each of them, and soon.
#[test]
fn every_page_is_three_clicks_away_at_most() {
    let pages = pages();
    for start in ["README.md", "README.zh.md"] {
        let away = clicks(start, &pages);
        let far = pages.keys().filter(|page| page.starts_with("docs") && !page.ends_with("SUMMARY.md"));
        let far: Vec<_> = far.filter(|page| away.get(*page).is_none_or(|clicks| *clicks > 3)).collect();
        assert!(far.is_empty(), "too far from {start}, or without a link to it: {far:?}");
    }
}

#[test]
fn an_orphan_is_found() {
    let page = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
    let pages = [
        page("README.md", "[a](docs/a.md)"),
        page("docs/a.md", "[b](b.md#c) [all](SUMMARY.md) [more](SUMMARY.md#some-more)"),
        page("docs/b.md", ""),
        page("docs/SUMMARY.md", "# Summary\n[c](c.md)\n\n# Some more\n\n[d](d.md)\n\n# Rest\n\n[e](e.md)\n"),
        page("docs/c.md", "[a](a.md)"),
        page("docs/d.md", ""),
        page("docs/e.md", ""),
    ];
    let away = clicks("README.md", &pages.into_iter().collect());
    let section = ("docs/SUMMARY.md#some-more", 2);
    let expected = [("README.md", 0), ("docs/a.md", 1), ("docs/b.md", 2), section, ("docs/d.md", 3)];
    assert_eq!(away, BTreeMap::from(expected.map(|(name, clicks)| (PathBuf::from(name), clicks))));
}

#[test]
fn a_dead_link_is_found() {
    let text = "# One heading\n[a](#one-heading) [b](#two) [c](README.md) [d](no.md) `[e](no)`\n```\n[f](no)\n```\n";
    let page = BTreeMap::from([(PathBuf::from("page.md"), text.to_owned())]);
    assert_eq!(dead_links(&page), ["page.md: #two", "page.md: no.md"]);
}

/// The README leads to each question, and each answer leads on: two clicks from the front page.
#[test]
fn the_readme_leads_to_every_answer() {
    let page = read("docs/guide/questions.md");
    let answers: Vec<_> = page.split("\n## ").skip(1).collect();
    assert!(answers.len() > 10, "only {} questions", answers.len());
    for answer in &answers {
        let leads_on = links(answer).iter().any(|link| !link.starts_with('#'));
        assert!(leads_on, "an answer without a link to a page: {answer}");
    }
    for name in ["README.md", "README.zh.md"] {
        let readme = read(name);
        let asked = links(&readme).into_iter().filter(|link| link.starts_with("docs/guide/questions.md#"));
        assert_eq!(asked.collect::<BTreeSet<_>>().len(), 5, "{name} has the five first questions");
    }
}

/// A fenced block: the line before it, its language, its lines.
fn blocks(page: &str) -> Vec<(String, String, Vec<&str>)> {
    let (mut found, mut open, mut before) = (Vec::new(), None::<(String, String, Vec<_>)>, "");
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(language), None) => open = Some((before.to_owned(), language.to_owned(), Vec::new())),
            (None, Some(block)) => block.2.push(line),
            (None, None) => {}
        }
        if !line.trim().is_empty() {
            before = line;
        }
    }
    found
}

/// A program on a page either is a doctest of `oarlock-pages`, or is a part of a file that is built: the line before
/// it is `<!-- from FILE -->` then.
#[test]
fn every_program_of_every_page_is_compiled() {
    let mut programs = 0;
    for (page, text) in pages() {
        for (before, language, lines) in blocks(&text) {
            if !language.starts_with("rust") {
                continue;
            }
            programs += 1;
            let what = format!("{}: the program that begins with {:?}", page.display(), lines.first());
            if let Some(file) = before.strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->")) {
                assert_eq!(language, "rust,ignore", "{what} would be a doctest as well");
                let source: Vec<_> = read(file).lines().map(|line| line.trim().to_owned()).collect();
                let shown: Vec<_> = lines.iter().map(|line| line.trim()).collect();
                assert!(source.windows(shown.len()).any(|part| part == shown), "{what} is not in {file}");
            } else {
                assert!(matches!(&*language, "rust" | "rust,no_run"), "{what} is not compiled: {language}");
                let tested = oarlock_pages::PAGES.iter().any(|tested| Path::new(tested) == page);
                assert!(tested, "{what}: testing/oarlock-pages does not take this page");
            }
        }
    }
    assert!(programs > 40, "only {programs} programs were found");
}

/// The README in Chinese has the commands and programs of the README, in the same order.
#[test]
fn both_readmes_have_the_same_commands() {
    let same = |page| {
        let mut blocks = blocks(page).into_iter().map(|(_, language, lines)| (language, lines)).collect::<Vec<_>>();
        blocks.retain(|(language, _)| language != "console"); // their comments are translated
        blocks
    };
    let (english, chinese) = (read("README.md"), read("README.zh.md"));
    assert!(same(&english).len() > 2);
    assert_eq!(same(&english), same(&chinese));
}

/// The tables of a page: for each row the number of its cells, the code in them and the targets of their links.
fn tables(page: &str) -> Vec<(usize, Vec<String>, Vec<String>)> {
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let code = |row: &str| row.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    rows.map(|row| (row.split('|').count(), code(row), links(row))).collect()
}

/// The README in Chinese has the tables of the README: the same rows, with the same commands and links in them.
#[test]
fn both_readmes_have_the_same_tables() {
    let (english, chinese) = (tables(&read("README.md")), tables(&read("README.zh.md")));
    assert!(english.len() > 40, "only {} rows", english.len());
    for (english, chinese) in english.iter().zip(&chinese) {
        // One row of the last table leads to a page that is there in Chinese as well.
        let translated = chinese.2.iter().any(|link| link.ends_with(".zh.md"));
        let links: Vec<_> = chinese.2.iter().filter(|link| !link.ends_with(".zh.md")).collect();
        assert_eq!((english.0, english.2.iter().collect()), (chinese.0, links), "{english:?}");
        assert!(translated || english.1 == chinese.1, "{english:?} and {chinese:?}");
    }
    assert_eq!(english.len(), chinese.len());
}

/// The page for users of Redisson in Chinese has the methods of the English one, in the same order.
#[test]
fn both_pages_for_redisson_have_the_same_methods() {
    let methods = |page: &str| -> Vec<Vec<String>> {
        let rows = page.lines().filter(|line| line.starts_with("| "));
        let first = rows.filter_map(|row| row.split(" | ").next()).filter(|cell| cell.contains('`'));
        first.map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()).collect()
    };
    let (english, chinese) = (read("docs/guide/migrate/redisson.md"), read("docs/guide/migrate/redisson.zh.md"));
    let (english, chinese) = (methods(&english), methods(&chinese));
    assert!(english.len() > 25, "{english:?}");
    let lease = |row: &Vec<String>| !row.iter().any(|code| code == "ttl"); // its table of words
    assert_eq!(english, chinese.into_iter().filter(lease).collect::<Vec<_>>());
}

/// A span as the pages write it.
fn span(milliseconds: u64) -> String {
    match milliseconds {
        ms if ms % 86_400_000 == 0 => format!("{} d", ms / 86_400_000),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 && ms > 60_000 => format!("{} min", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms if ms > 1000 => format!("{} s", ms as f64 / 1000.0),
        ms => format!("{ms} ms"),
    }
}

/// The constants of a source file that are spans of time, without those of its tests.
fn spans(source: &str) -> Vec<(&str, String)> {
    let code = source.split("\nmod tests {").next().unwrap_or_default();
    let constants =
        code.lines().filter_map(|line| line.split_once("const ")?.1.split_once(": Duration = Duration::from_"));
    let found = constants.filter_map(|(name, value)| {
        let (unit, number) = value.trim_end_matches(");").split_once('(')?;
        let number: u64 = number.split(" * ").map(|factor| factor.parse::<u64>().ok()).product::<Option<_>>()?;
        Some((name, span(number * if unit == "secs" { 1000 } else { 1 })))
    });
    found.collect()
}

/// The page about the architecture lists each time-out and pause that a driver decides, with its value.
#[test]
fn every_time_out_of_a_driver_is_listed() {
    let page = read("docs/architecture.md");
    let (mut folders, mut found, mut missing) = (vec![root().join("stores")], 0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of stores") {
            let path = entry.expect("an entry").path();
            let inside = path.strip_prefix(root().join("stores")).expect("below stores").to_owned();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // CRATE/src/FILE
            let mut parts = inside.components();
            let is_source = parts.nth(1).is_some_and(|part| part.as_os_str() == "src");
            let file = parts.as_path().display().to_string();
            if !is_source || !file.ends_with(".rs") || file.ends_with("tests.rs") {
                continue;
            }
            for (name, value) in spans(&read(&path)) {
                found += 1;
                let row = format!("| `{file}` `{name}` | {value} |");
                if !page.contains(&row) {
                    missing.push(row);
                }
            }
        }
    }
    assert!(found > 30, "only {found} constants were found");
    assert!(missing.is_empty(), "not in the table of docs/architecture.md:\n{}", missing.join("\n"));
}

/// The way of a claim on the page about the architecture: each function is in the file that the page names.
#[test]
fn the_way_of_a_claim_is_the_way_it_goes() -> Outcome {
    let page = read("docs/architecture.md");
    let way = between(&page, "### From `lock()`", "\n## ").ok_or("the way has no section")?;
    let code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut found = 0;
    for row in way.lines().filter(|line| line.starts_with("| core |") || line.starts_with("| redis |")) {
        let cells: Vec<_> = row.split(" | ").collect();
        let source = if row.starts_with("| core") { "crates/oarlock-core" } else { "stores/oarlock-redis" };
        for file in code(cells[1]) {
            let source = read(format!("{source}/src/{file}"));
            for function in code(cells[2]) {
                let declared = [format!("fn {function}("), format!("fn {function}<")];
                assert!(declared.iter().any(|line| source.contains(line)), "{file} has no function {function}");
                found += 1;
            }
        }
    }
    assert!(found > 20, "only {found} functions were found");
    Ok(())
}

/// The rows of the first table of a page, each with its cells.
fn rows(page: &str) -> Vec<Vec<String>> {
    let table = page.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    table.skip(2).map(cells).collect()
}

/// `docs/errors.md` has a row for each kind of error, with the exit code of the command line.
#[test]
fn the_catalogue_has_every_kind_of_error_with_its_exit_code() -> Outcome {
    let kinds = read("crates/oarlock-core/src/error.rs");
    let kinds = between(&kinds, "pub enum ErrorKind {\n", "\n}").ok_or("no ErrorKind")?;
    let kinds = kinds.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let kinds: BTreeSet<_> = kinds.filter_map(|line| line.strip_suffix(',')).collect();
    assert!(kinds.contains("Busy") && kinds.contains("Internal") && kinds.len() > 15, "{kinds:?}");

    let exit = read("crates/oarlock-cli/src/exit.rs");
    let numbers = between(&exit, "enum Code {\n", "\n}").ok_or("no Code")?;
    let numbers: BTreeMap<_, _> =
        numbers.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = ")).collect();
    let arms = between(&exit, "match kind {\n", "_ => Self::Internal").ok_or("no match over the kinds")?;
    let mut codes = BTreeMap::new();
    for arm in arms.split_inclusive("=> Self::").collect::<Vec<_>>().windows(2) {
        let code = arm[1].split(',').next().ok_or("an arm without a code")?;
        for kind in arm[0].split("ErrorKind::").skip(1) {
            codes.insert(kind.split(|c: char| !c.is_alphanumeric()).next().ok_or("no kind")?, numbers[code]);
        }
    }
    assert_eq!(codes.get("Lost"), Some(&"76"));

    let page = read("docs/errors.md");
    let mut listed = BTreeMap::new();
    for row in rows(&page) {
        assert_eq!(row.len(), 4, "kind, exit code, cause, what to do: {row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "an empty cell: {row:?}");
        listed.insert(row[0].trim_matches('`').to_owned(), row[1].clone());
    }
    let expected: BTreeMap<_, _> = kinds
        .into_iter()
        .map(|kind| (kind.to_owned(), (*codes.get(kind).unwrap_or(&numbers["Internal"])).to_owned()))
        .collect();
    assert_eq!(listed, expected, "docs/errors.md differs from ErrorKind and the exit codes");
    Ok(())
}

/// The table of exit codes has every code of the command line, with its meaning and what to do.
#[test]
fn the_command_line_explains_every_exit_code() -> Outcome {
    let exit = read("crates/oarlock-cli/src/exit.rs");
    let codes = between(&exit, "enum Code {\n", "\n}").ok_or("no Code")?;
    let codes: BTreeSet<_> = codes.lines().filter_map(|line| line.trim_end_matches(',').split_once(" = ")).collect();
    assert!(codes.len() > 10 && codes.iter().any(|(_, code)| *code == "75"), "{codes:?}");
    let page = read("docs/cli.md");
    let rows = rows(page.split_once("\n## Exit codes\n").ok_or("no exit codes")?.1);
    assert!(rows.iter().all(|row| row.len() == 3 && row.iter().all(|cell| !cell.is_empty())), "{rows:?}");
    for (name, code) in codes {
        let is_there = rows.iter().any(|row| row[0].split(", ").any(|listed| listed == code));
        assert!(is_there, "docs/cli.md does not explain the exit code {code} ({})", name.trim());
    }
    Ok(())
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    Some(text.split_once(start)?.1.split_once(end)?.0)
}

#[test]
fn the_formats_of_the_stores_are_those_of_the_code() {
    let page = read("docs/reliability.md");
    for (store, file) in [
        ("PostgreSQL", "stores/oarlock-sql/src/postgres/schema.rs"),
        ("MySQL, MariaDB", "stores/oarlock-sql/src/mysql/schema.rs"),
        ("etcd", "stores/oarlock-etcd/src/queue.rs"),
        ("ZooKeeper", "stores/oarlock-zookeeper/src/record.rs"),
        ("embedded", "stores/oarlock-local/src/state.rs"),
    ] {
        let code = read(file);
        let line = code.lines().find(|line| line.contains("const FORMAT: ")).expect("a format");
        let format = line.rsplit(' ').next().and_then(|last| last.strip_suffix(';')).expect("its number");
        assert!(page.contains(&format!("| {store} | {format} |")), "docs/reliability.md: {store} has format {format}");
    }
}

//! `cargo xtask package`: every published crate as it would be uploaded, in the order of their dependencies.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde_json::Value;

use crate::tools;
use crate::workspace::{Failure, Workspace, stream};

/// The texts that go with each crate.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// Packs every published crate and compiles what was packed, then compares the public API with that of the last release.
///
/// # Errors
/// When a crate lacks something that users look for, does not compile as packed, or breaks its API without a new version.
pub(crate) fn run(workspace: &Workspace) -> Result<(), Failure> {
    let crates = published(workspace)?;
    let lacking: Vec<_> = crates.iter().flat_map(lacks).collect();
    if !lacking.is_empty() {
        return Err(Failure::new(lacking.join("\n")));
    }
    let names = in_order(&crates).map_err(Failure::new)?;
    println!("published, in this order: {}", names.join(", "));
    // Crates that are not published yet are found among those that are packed with them.
    let mut pack = workspace.cargo(["package", "--locked", "--allow-dirty"]);
    stream(pack.args(names.iter().flat_map(|name| ["--package", name])))?;
    semver(workspace, &names)
}

/// The crates that go to the registry, as `cargo metadata` shows them.
pub(crate) fn published(workspace: &Workspace) -> anyhow::Result<Vec<Value>> {
    let mut metadata = workspace.cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let output = metadata.stderr(Stdio::inherit()).output().context("cannot start cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata said nothing")?;
    let crates = metadata["packages"].as_array().cloned().unwrap_or_default();
    Ok(crates.into_iter().filter(|each| each["publish"].is_null()).collect())
}

/// What users look for in a registry and this crate does not say.
fn lacks(each: &Value) -> Vec<String> {
    let name = each["name"].as_str().unwrap_or("a crate");
    let mut lacking = Vec::new();
    let mut check = |what: &str, is_there: bool| {
        if !is_there {
            lacking.push(format!("{name}: no {what}"));
        }
    };
    let texts = ["description", "license", "repository", "readme", "rust_version"];
    for field in texts {
        check(field, each[field].as_str().is_some_and(|text| !text.is_empty()));
    }
    for field in ["keywords", "categories"] {
        check(field, each[field].as_array().is_some_and(|words| (1..=5).contains(&words.len())));
    }
    check("[package.metadata.docs.rs]", each["metadata"]["docs"]["rs"].is_object());
    let folder = each["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
    for licence in LICENCES {
        // The text itself: a link that a checkout has turned into a file with a path in it is no licence.
        let has_text = |folder: &Path| std::fs::read_to_string(folder.join(licence)).is_ok_and(|text| text.len() > 500);
        check(licence, folder.is_some_and(has_text));
    }
    lacking
}

/// The crates in an order in which they can be uploaded: each after those that it depends on, for tests, too. A
/// dependency without a version is left out of what is uploaded.
fn in_order(crates: &[Value]) -> Result<Vec<&str>, String> {
    let name = |each: &Value| each["name"].as_str().unwrap_or_default().to_owned();
    let needs = |each: &Value| -> Vec<String> {
        let dependencies = each["dependencies"].as_array().into_iter().flatten();
        let uploaded = dependencies.filter(|one| one["path"].is_string() && one["req"] != "*");
        uploaded.map(name).filter(|needed| *needed != name(each)).collect()
    };
    let (mut ordered, mut left) = (Vec::new(), crates.iter().collect::<Vec<_>>());
    while !left.is_empty() {
        let is_ready = |each: &&Value| !left.iter().any(|other| needs(each).contains(&name(other)));
        let ready: Vec<_> = left.iter().copied().filter(|each| is_ready(each)).collect();
        if ready.is_empty() {
            let circle: Vec<_> = left.iter().map(|each| name(each)).collect();
            return Err(format!("these depend on each other, so none can be uploaded first: {}", circle.join(", ")));
        }
        left.retain(|each| !ready.contains(each));
        ordered.extend(ready.iter().filter_map(|each| each["name"].as_str()));
    }
    Ok(ordered)
}

/// Compares with the last release before this commit, if there was one.
fn semver(workspace: &Workspace, names: &[&str]) -> Result<(), Failure> {
    let git = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").args(arguments).current_dir(workspace.root()).stderr(Stdio::null()).output();
        Ok(String::from_utf8_lossy(&output.context("cannot start git")?.stdout).trim().to_owned())
    };
    // Not the tag of this very commit, with which nothing could differ.
    let tag = git(&["describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"])?;
    if tag.is_empty() {
        let is_shallow = git(&["rev-parse", "--is-shallow-repository"])? == "true";
        let why = if is_shallow { "this clone has no history: fetch all of it" } else { "no release is tagged yet" };
        println!("semver: not checked: {why}");
        let must = is_shallow && std::env::var_os("CI").is_some();
        return if must { Err(Failure::new(format!("semver: {why}"))) } else { Ok(()) };
    }
    let tool = tools::installed(workspace, "cargo-semver-checks", "0.51")?;
    let libraries = names.iter().filter(|name| !["oarlock-cli", "oarlock-macros"].contains(name));
    let mut check = Command::new(tool);
    check
        .args(["semver-checks", "check-release", "--all-features", "--baseline-rev", &tag])
        .current_dir(workspace.root());
    stream(check.args(libraries.flat_map(|name| ["--package", name])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_crate_says_what_users_look_for() {
        let crates = published(&Workspace::find().expect("the repository")).expect("the crates");
        assert!(crates.len() > 10, "{}", crates.len());
        let lacking: Vec<_> = crates.iter().flat_map(lacks).collect();
        assert!(lacking.is_empty(), "{}", lacking.join("\n"));
        let bare = serde_json::json!({ "name": "bare", "keywords": ["a", "b", "c", "d", "e", "f"] });
        assert_eq!(lacks(&bare).len(), 10);
        let order = in_order(&crates).expect("an order");
        let at = |name: &str| order.iter().position(|each| *each == name).expect("a published crate");
        assert!(at("oarlock-core") < at("oarlock-redis") && at("oarlock") < at("oarlock-cli"), "{order:?}");
    }

    #[test]
    fn a_circle_is_found_and_a_dependency_without_a_version_makes_none() {
        let on = |name: &str, req: &str| serde_json::json!({ "name": name, "req": req, "path": "/x" });
        let each = |name: &str, on: Value| serde_json::json!({ "name": name, "dependencies": [on] });
        let circle = [each("a", on("b", "^0.1")), each("b", on("a", "^0.1"))];
        assert!(in_order(&circle).is_err_and(|why| why.contains("a, b")));
        assert_eq!(in_order(&[each("a", on("b", "*")), each("b", on("a", "^0.1"))]), Ok(vec!["a", "b"]));
    }
}

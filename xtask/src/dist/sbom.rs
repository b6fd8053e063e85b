//! The bill of materials of the program: every crate in it, as `CycloneDX`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::workspace::Workspace;

/// The crate of the program.
const PROGRAM: &str = "oarlock-cli";

/// Writes what `cargo metadata` says about the program for this target.
pub(super) fn write(workspace: &Workspace, target: &str, path: &Path) -> anyhow::Result<()> {
    let mut metadata = workspace.cargo(["metadata", "--locked", "--format-version", "1", "--filter-platform", target]);
    let output = metadata.stderr(Stdio::inherit()).output().context("cannot start cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata said nothing")?;
    let bill = bill(&metadata).context("cargo metadata is not as expected")?;
    let components = bill["components"].as_array().map_or(0, Vec::len);
    println!("bill of materials: {components} crates");
    std::fs::write(path, serde_json::to_string_pretty(&bill)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The crates that are linked into the program. Those that only build it or test it are not.
fn bill(metadata: &Value) -> Option<Value> {
    let packages = metadata["packages"].as_array()?;
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let program = packages.iter().find(|package| package["name"] == PROGRAM)?;
    let mut open = vec![program["id"].as_str()?];
    let mut reached = BTreeSet::new();
    let mut edges = Vec::new();
    while let Some(id) = open.pop() {
        if !reached.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id)?;
        let is_linked = |dependency: &&Value| {
            dependency["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        let linked = node["deps"].as_array()?.iter().filter(is_linked);
        // A macro runs in the compiler, and is not in the program.
        let linked = linked.filter_map(|dependency| dependency["pkg"].as_str()).filter(|id| !is_macro(packages, id));
        let linked: Vec<&str> = linked.collect();
        let named = |id: &str| packages.iter().find(|package| package["id"] == id).map(purl);
        let needed: Vec<_> = linked.iter().filter_map(|id| named(id)).collect();
        edges.push(json!({ "ref": named(id)?, "dependsOn": needed }));
        open.extend(linked);
    }
    let in_it = packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| reached.contains(id)));
    let components: Vec<Value> = in_it.filter(|package| package["name"] != PROGRAM).map(component).collect();
    let mut main = component(program);
    main["type"] = "application".into();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": main },
        "components": components,
        "dependencies": edges,
    }))
}

fn is_macro(packages: &[Value], id: &str) -> bool {
    let kinds = |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"proc-macro".into()));
    let package = packages.iter().find(|package| package["id"] == id);
    package.and_then(|package| package["targets"].as_array()).is_some_and(|targets| targets.iter().any(kinds))
}

/// The name of a crate that is the same on every machine: cargo's own has the folder in which it was built.
fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(package: &Value) -> Value {
    let (name, version) =
        (package["name"].as_str().unwrap_or_default(), package["version"].as_str().unwrap_or_default());
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // An old way to write `OR`.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_builds_or_tests_the_program_is_not_in_it() {
        let package = |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let mut derive = package("serde_derive");
        derive["targets"] = json!([{ "kind": ["proc-macro"] }]);
        let on = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("oarlock-cli"), package("tokio"), package("cc"), package("tempfile"), package("mio"), derive],
            "resolve": { "nodes": [
                { "id": "oarlock-cli", "deps": [on("tokio", Value::Null), on("cc", "build".into()), on("tempfile", "dev".into())] },
                { "id": "tokio", "deps": [on("mio", Value::Null), on("serde_derive", Value::Null)] },
                { "id": "mio", "deps": [] },
            ] },
        });
        let bill = bill(&metadata).expect("a bill");
        let names: Vec<_> =
            bill["components"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["tokio", "mio"]);
        assert_eq!(bill["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        let tokio = json!({ "ref": "pkg:cargo/tokio@1.0.0", "dependsOn": ["pkg:cargo/mio@1.0.0"] });
        assert_eq!(bill["dependencies"][1], tokio);
    }
}

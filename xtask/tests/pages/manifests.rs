//! The YAML on the pages: it can be read, and the manifests of Kubernetes have what their kind needs.

use yaml_rust2::{Yaml, YamlLoader};

use super::super::{blocks, pages, read};

fn parse(what: &str, text: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(documents.len(), 1, "{what}: one document");
    documents.remove(0)
}

fn text<'a>(what: &str, node: &'a Yaml) -> &'a str {
    node.as_str().unwrap_or_else(|| panic!("{what} is missing: {node:?}"))
}

/// A container has a name and an image, starts `oarlock`, and gets the URL from a secret.
fn check_container(what: &str, container: &Yaml) {
    text(&format!("{what}: name"), &container["name"]);
    text(&format!("{what}: image"), &container["image"]);
    let command = container["command"].as_vec().unwrap_or_else(|| panic!("{what}: no command"));
    let words: Vec<_> = command.iter().map(|word| text(what, word)).collect();
    assert!(words.join(" ").contains("oarlock "), "{what}: {words:?}");
    let environment = container["env"].as_vec().unwrap_or_else(|| panic!("{what}: no environment"));
    let url = environment.iter().find(|variable| variable["name"].as_str() == Some("OARLOCK_URL"));
    let secret = &url.unwrap_or_else(|| panic!("{what}: no URL"))["valueFrom"]["secretKeyRef"];
    text(&format!("{what}: the secret"), &secret["name"]);
    text(&format!("{what}: the key of the secret"), &secret["key"]);
}

fn check_manifest(what: &str, manifest: &Yaml) {
    let kind = text(&format!("{what}: kind"), &manifest["kind"]);
    text(&format!("{what}: metadata.name"), &manifest["metadata"]["name"]);
    let spec = &manifest["spec"];
    let (version, template) = match kind {
        "CronJob" => {
            text(&format!("{what}: schedule"), &spec["schedule"]);
            ("batch/v1", &spec["jobTemplate"]["spec"]["template"])
        }
        "Deployment" => {
            let (chosen, given) = (&spec["selector"]["matchLabels"], &spec["template"]["metadata"]["labels"]);
            assert!(chosen == given && !chosen.is_badvalue(), "{what}: the selector chooses other pods");
            ("apps/v1", &spec["template"])
        }
        _ => panic!("{what}: write down here what a {kind} needs"),
    };
    assert_eq!(text(what, &manifest["apiVersion"]), version, "{what}");
    let pod = &template["spec"];
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap_or_else(|| panic!("{what}: no grace"));
    assert!(grace > 5, "{what}: longer than `--kill-after`");
    let containers = pod["containers"].as_vec().unwrap_or_else(|| panic!("{what}: no containers"));
    containers.iter().for_each(|container| check_container(what, container));
}

#[test]
fn can_be_read_and_are_complete() {
    let mut manifests = 0;
    for (page, page_text) in pages() {
        for (_, language, lines) in blocks(&page_text) {
            if language == "yaml" {
                let what = format!("{}: {:?}", page.display(), lines.first());
                let document = parse(&what, &(lines.join("\n") + "\n"));
                if !document["apiVersion"].is_badvalue() {
                    check_manifest(&what, &document);
                    manifests += 1;
                }
            }
        }
    }
    assert!(manifests >= 2, "only {manifests} manifests were found");
    let alerts = parse("alerts.yml", &read("docs/observability/alerts.yml"));
    assert!(alerts["groups"][0]["rules"].as_vec().is_some_and(|rules| rules.len() > 3));
}

#[test]
#[should_panic(expected = "the selector chooses other pods")]
fn a_wrong_selector_is_found() {
    let manifest = "kind: Deployment\nmetadata: { name: a }\nspec:\n  selector: { matchLabels: { app: a } }\n  \
                    template: { metadata: { labels: { app: b } } }\n";
    check_manifest("it", &parse("it", manifest));
}

//! The `OpenAPI` document and the server agree.

use std::collections::BTreeSet;

use super::support::{Running, Store};

#[tokio::test]
async fn every_operation_of_the_document_is_served_and_no_other() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let document = server.send("GET", "/v1/openapi.json", "").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    for (template, path) in document["paths"].as_object().unwrap() {
        let at = template.replace("{name}", "a%2Fb");
        let methods = ["get", "post", "delete", "put", "patch"];
        for method in methods {
            let described = path.get(method);
            if let Some(operation) = described {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "{template}: two have one id");
            }
            // A stream does not end by itself.
            if described.is_some() && template.ends_with("watch") {
                server.events(&at, &[]).await;
                continue;
            }
            let reply = server.send(&method.to_uppercase(), &at, "{}").await;
            match described {
                None => assert_eq!(reply.status, 405, "{method} {template}: {reply:?}"),
                Some(operation) => {
                    assert!(![404, 405].contains(&reply.status), "{method} {template}: {reply:?}");
                    let status = reply.status.to_string();
                    let answer = &operation["responses"][&status];
                    assert!(answer.is_object(), "{method} {template}: {status} is not described: {reply:?}");
                    if reply.status < 300 {
                        let types: Vec<&String> = answer["content"].as_object().unwrap().keys().collect();
                        let served = |kind: &&String| reply.head.contains(&format!("content-type: {kind}"));
                        assert!(types.iter().any(served), "{method} {template}: {types:?} {}", reply.head);
                    }
                }
            }
        }
    }
    assert_eq!(ids.len(), 18, "as many as there are routes: {ids:?}");
    server.send("GET", "/v1/unknown", "").await.problem(404, "not-found");
    server.stop().await;
}

#[tokio::test]
async fn references_of_the_document_lead_somewhere() {
    let store = Store::local();
    let server = Running::start(&store).await;
    let document = server.send("GET", "/v1/openapi.json", "").await.json();
    let mut todo = vec![&document];
    let mut seen = 0;
    while let Some(value) = todo.pop() {
        if let Some(reference) = value.get("$ref").and_then(|reference| reference.as_str()) {
            assert!(document.pointer(&reference[1..]).is_some(), "{reference}");
            seen += 1;
        }
        todo.extend(value.as_object().into_iter().flat_map(|map| map.values()));
        todo.extend(value.as_array().into_iter().flatten());
    }
    assert!(seen > 20, "{seen}");
    server.stop().await;
}

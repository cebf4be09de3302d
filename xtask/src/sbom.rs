//! `cargo xtask sbom`: dependencies of the product as a CycloneDX document.
//!
//! Components are the crates linked into `bowline` or run during the build on this platform, as
//! `cargo metadata` resolves them; checksums come from `Cargo.lock`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// The shipped crate.
const PRODUCT: &str = "bowline";

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let words: Vec<_> = rest.iter().map(String::as_str).collect();
    let out = match words.as_slice() {
        [] => None,
        ["--out", file] => Some(*file),
        other => bail!("unknown options `{}`; known: --out FILE", other.join(" ")),
    };
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?;
    let document = build_document(&cargo_metadata(root)?, &parse_checksums(&lock)?)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    match out {
        Some(file) => fs::write(file, text).with_context(|| format!("write {file}"))?,
        None => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn cargo_metadata(root: &Path) -> Result<Value> {
    let host = process::run_captured_in(root, "rustc", &["--print", "host-tuple"])?;
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
        ])
        .arg(host.trim())
        .current_dir(root);
    Ok(serde_json::from_str(&process::run_captured(&mut cargo)?)?)
}

/// Returns the SHA-256 of every package in the lock file by name and version.
fn parse_checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let found = packages.into_iter().flatten().filter_map(|package| {
        let word = |key: &str| Some(package.get(key)?.as_str()?.to_owned());
        Some(((word("name")?, word("version")?), word("checksum")?))
    });
    Ok(found.collect())
}

fn build_document(metadata: &Value, sums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let packages = array_at(metadata, "/packages");
    let by_id: BTreeMap<&str, &Value> = packages
        .iter()
        .filter_map(|package| Some((str_member(package, "id")?, package)))
        .collect();
    let edges = dependency_edges(metadata);
    let product = packages
        .iter()
        .find(|package| str_member(package, "name") == Some(PRODUCT))
        .and_then(|package| str_member(package, "id"))
        .context("the product is not in the workspace")?;
    let reached = reachable_packages(product, &edges);
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &reached {
        let Some(package) = by_id.get(id) else {
            bail!("`{id}` has no package");
        };
        if *id != product {
            components.push(to_component(package, sums));
        }
        let needs = edges.get(id).into_iter().flatten();
        let needs: Vec<_> = needs
            .filter_map(|need| by_id.get(need))
            .map(|package| to_purl(package))
            .collect();
        dependencies.push(json!({"ref": to_purl(package), "dependsOn": needs}));
    }
    let shipped = by_id.get(product).context("no product")?;
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": to_purl(shipped),
            "name": PRODUCT,
            "version": str_member(shipped, "version"),
            "licenses": to_licences(shipped),
        }},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns the build and link dependencies of each package, without dev-dependencies.
fn dependency_edges(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let nodes = array_at(metadata, "/resolve/nodes").iter();
    let is_shipped = |dependency: &&Value| {
        let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
        let mut kinds = kinds.into_iter().flatten();
        kinds.any(|kind| str_member(kind, "kind") != Some("dev"))
    };
    nodes
        .filter_map(|node| {
            let needs = node.get("deps")?.as_array()?.iter();
            let needs = needs
                .filter(is_shipped)
                .filter_map(|dep| str_member(dep, "pkg"));
            Some((str_member(node, "id")?, needs.collect()))
        })
        .collect()
}

fn reachable_packages<'a>(
    from: &'a str,
    edges: &BTreeMap<&'a str, Vec<&'a str>>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = VecDeque::from([from]);
    while let Some(id) = next.pop_front() {
        if reached.insert(id) {
            next.extend(edges.get(id).into_iter().flatten());
        }
    }
    reached
}

fn to_component(package: &Value, sums: &BTreeMap<(String, String), String>) -> Value {
    let text = |key: &str| str_member(package, key).unwrap_or_default().to_owned();
    let mut component = json!({
        "type": "library",
        "bom-ref": to_purl(package),
        "name": text("name"),
        "version": text("version"),
        "purl": to_purl(package),
        "licenses": to_licences(package),
    });
    let sum = sums.get(&(text("name"), text("version")));
    if let (Some(sum), Some(object)) = (sum, component.as_object_mut()) {
        let hashes = json!([{"alg": "SHA-256", "content": sum}]);
        object.insert("hashes".to_owned(), hashes);
    }
    component
}

fn to_licences(package: &Value) -> Value {
    match str_member(package, "license") {
        // Older crates write `MIT/Apache-2.0` instead of the SPDX `OR`.
        Some(licence) => json!([{"expression": licence.replace('/', " OR ")}]),
        None => json!([]),
    }
}

fn to_purl(package: &Value) -> String {
    let text = |key: &str| str_member(package, key).unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn str_member<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn array_at<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_lists_shipped_crates_with_checksums() {
        let package = |name: &str| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let dep = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("bowline"), package("used"), package("built"), package("tested")],
            "resolve": {"nodes": [
                {"id": "bowline", "deps": [
                    dep("used", Value::Null), dep("tested", json!("dev")),
                ]},
                {"id": "used", "deps": [dep("built", json!("build"))]},
                {"id": "built", "deps": []},
                {"id": "tested", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n";
        let document = build_document(&metadata, &parse_checksums(lock).unwrap()).unwrap();
        let names: Vec<_> = array_at(&document, "/components")
            .iter()
            .filter_map(|component| str_member(component, "name"))
            .collect();
        assert_eq!(names, ["built", "used"]);
        let hash = document.pointer("/components/1/hashes/0/content");
        assert_eq!(hash, Some(&json!("ab")));
        let licence = document.pointer("/components/0/licenses/0/expression");
        assert_eq!(licence, Some(&json!("MIT OR Apache-2.0")));
    }
}

//! `cargo xtask sbom`: what the product is made of, as a CycloneDX document.
//!
//! Components are the crates that are linked into `bowline` or run while it is built, for this
//! kind of machine, as `cargo metadata` resolves them; checksums are those of `Cargo.lock`.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// The crate that is shipped.
const PRODUCT: &str = "bowline";

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let words: Vec<_> = rest.iter().map(String::as_str).collect();
    let out = match words.as_slice() {
        [] => None,
        ["--out", file] => Some(*file),
        other => bail!("unknown options `{}`; known: --out FILE", other.join(" ")),
    };
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("read Cargo.lock")?;
    let document = document(&metadata(root)?, &checksums(&lock)?)?;
    let text = serde_json::to_string_pretty(&document)? + "\n";
    match out {
        Some(file) => fs::write(file, text).with_context(|| format!("write {file}"))?,
        None => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn metadata(root: &Path) -> Result<Value> {
    let host = process::output(root, "rustc", &["--print", "host-tuple"])?;
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
    Ok(serde_json::from_str(&process::quiet(&mut cargo)?)?)
}

/// The SHA-256 of every package of the lock file, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock")?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let found = packages.into_iter().flatten().filter_map(|package| {
        let word = |key: &str| Some(package.get(key)?.as_str()?.to_owned());
        Some(((word("name")?, word("version")?), word("checksum")?))
    });
    Ok(found.collect())
}

fn document(metadata: &Value, sums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let packages = list(metadata, "/packages");
    let by_id: BTreeMap<&str, &Value> = packages
        .iter()
        .filter_map(|package| Some((word(package, "id")?, package)))
        .collect();
    let edges = edges(metadata);
    let product = packages
        .iter()
        .find(|package| word(package, "name") == Some(PRODUCT))
        .and_then(|package| word(package, "id"))
        .context("the product is not in the workspace")?;
    let reached = reach(product, &edges);
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &reached {
        let Some(package) = by_id.get(id) else {
            bail!("`{id}` has no package");
        };
        if *id != product {
            components.push(component(package, sums));
        }
        let needs = edges.get(id).into_iter().flatten();
        let needs: Vec<_> = needs
            .filter_map(|need| by_id.get(need))
            .map(|package| purl(package))
            .collect();
        dependencies.push(json!({"ref": purl(package), "dependsOn": needs}));
    }
    let shipped = by_id.get(product).context("no product")?;
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {
            "type": "application",
            "bom-ref": purl(shipped),
            "name": PRODUCT,
            "version": word(shipped, "version"),
            "licenses": licences(shipped),
        }},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// What each package needs to be built and linked, without what only its tests need.
fn edges(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let nodes = list(metadata, "/resolve/nodes").iter();
    let is_shipped = |dependency: &&Value| {
        let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
        let mut kinds = kinds.into_iter().flatten();
        kinds.any(|kind| word(kind, "kind") != Some("dev"))
    };
    nodes
        .filter_map(|node| {
            let needs = node.get("deps")?.as_array()?.iter();
            let needs = needs.filter(is_shipped).filter_map(|dep| word(dep, "pkg"));
            Some((word(node, "id")?, needs.collect()))
        })
        .collect()
}

fn reach<'a>(from: &'a str, edges: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = VecDeque::from([from]);
    while let Some(id) = next.pop_front() {
        if reached.insert(id) {
            next.extend(edges.get(id).into_iter().flatten());
        }
    }
    reached
}

fn component(package: &Value, sums: &BTreeMap<(String, String), String>) -> Value {
    let text = |key: &str| word(package, key).unwrap_or_default().to_owned();
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": text("name"),
        "version": text("version"),
        "purl": purl(package),
        "licenses": licences(package),
    });
    let sum = sums.get(&(text("name"), text("version")));
    if let (Some(sum), Some(object)) = (sum, component.as_object_mut()) {
        let hashes = json!([{"alg": "SHA-256", "content": sum}]);
        object.insert("hashes".to_owned(), hashes);
    }
    component
}

fn licences(package: &Value) -> Value {
    match word(package, "license") {
        // Older crates write `MIT/Apache-2.0` where SPDX says OR.
        Some(licence) => json!([{"expression": licence.replace('/', " OR ")}]),
        None => json!([]),
    }
}

fn purl(package: &Value) -> String {
    let text = |key: &str| word(package, key).unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
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
        let document = document(&metadata, &checksums(lock).unwrap()).unwrap();
        let names: Vec<_> = list(&document, "/components")
            .iter()
            .filter_map(|component| word(component, "name"))
            .collect();
        assert_eq!(names, ["built", "used"]);
        let hash = document.pointer("/components/1/hashes/0/content");
        assert_eq!(hash, Some(&json!("ab")));
        let licence = document.pointer("/components/0/licenses/0/expression");
        assert_eq!(licence, Some(&json!("MIT OR Apache-2.0")));
    }
}
